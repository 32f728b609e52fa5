# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``make compare``: run the comparison and write docs/BENCHMARKS.md.

Root is needed. Everything runs in cgroups of its own, which are removed at the end, after Ctrl-C
and also if the program is killed. Nothing else may use the machine meanwhile.
"""

import argparse
from collections.abc import Sequence
import os
from pathlib import Path
import platform
import random
import sys
import time

from controller.demo.cgroups import DemoCgroups, DemoError, find_cpuacct_mount
from controller.demo.session import Interrupted, Session, interruptible
from controller.host.facts import find_cgroup_layout
from tests.compare.blocks import ALONE, LS, Mix, Runner, load_blocks
from tests.compare.jobs import JOBS
from tests.compare.policies import POLICIES
from tests.compare.report import render
from tests.compare.services import SERVICES, SHAPES

# Each service and shape, and jobs that compute, share a cache, fill the memory bandwidth, and start
# processes. The full product is for --all, which takes hours.
MIXES = (
    Mix("nginx", "steady", "ffmpeg"),
    Mix("memcached", "bursty", "stream"),
    Mix("postgres", "stepped", "compiler"),
    Mix("nginx", "bursty", "vm"),
    Mix("memcached", "stepped", "xz"),
)
EVERY_MIX = tuple(Mix(s, shape, job) for s in SERVICES for shape in SHAPES for job in JOBS)
# Start of the agent, lead of the client, end of the job: measured.
_OVERHEAD_S = 6.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return the exit code."""
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each policy in a mix")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a block")
    parser.add_argument("--all", action="store_true", help="every service, shape and job: hours")
    parser.add_argument(
        "--mix", type=int, action="append", help="only this mix, from 1; repeatable"
    )
    parser.add_argument("--policy", action="append", choices=POLICIES, help="repeatable")
    parser.add_argument("--blocks", type=Path, default=Path("reports/compare.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("docs/BENCHMARKS.md"))
    parser.add_argument("--render", action="store_true", help="only write the page, from --blocks")
    args = parser.parse_args(argv)
    mixes = EVERY_MIX if args.all else MIXES
    if args.mix:
        mixes = tuple(mixes[number - 1] for number in args.mix)
    try:
        if not args.render:
            _run(args, mixes)
    except DemoError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    except Interrupted as interrupt:
        print("compare: interrupted, everything is cleaned up", file=sys.stderr)
        return 128 + interrupt.signum
    facts = _facts(args)
    args.output.write_text(render(load_blocks(args.blocks), facts))
    print(f"compare: {args.output}")
    return 0


def _facts(args: argparse.Namespace) -> dict[str, str]:
    blocks = load_blocks(args.blocks)
    version = find_cgroup_layout().version
    return {
        "machine": f"{os.cpu_count()} CPUs, Linux {platform.release()}, cgroup {version}",
        "date": time.strftime("%Y-%m-%d"),
        "rounds": str(max(block.round for block in blocks)),
    }


def _run(args: argparse.Namespace, mixes: Sequence[Mix]) -> None:
    layout = find_cgroup_layout()
    cpuacct = find_cpuacct_mount(layout.mount) if layout.version == "v1" else None
    cgroups = DemoCgroups(
        cpu_mount=layout.mount,
        cpuacct_mount=cpuacct,
        version=layout.version,
        tag=f"compare-{os.getpid()}",
    )
    args.blocks.parent.mkdir(parents=True, exist_ok=True)
    args.blocks.unlink(missing_ok=True)
    policies = [ALONE, *(args.policy or POLICIES)]
    total = len(mixes) * args.rounds * len(policies)
    minutes = total * (args.seconds + _OVERHEAD_S) / 60
    print(f"compare: {total} blocks in {len(mixes)} mixes, about {minutes:.0f} minutes", flush=True)
    rng = random.Random(1)
    done = 0
    with interruptible(), Session(cgroups) as session:
        cgroups.create((LS, "be-filler", *(f"be-{job}" for job in JOBS)))
        runner = Runner(session, layout.mount, layout.version, args.seconds, args.blocks)
        for mix in mixes:
            with runner.serving(SERVICES[mix.service]) as port:
                for number in range(1, args.rounds + 1):
                    for policy in rng.sample(policies, len(policies)):
                        block = runner.run(mix, policy, number, port)
                        done += 1
                        p99 = sorted(block.p99_ms)[len(block.p99_ms) // 2]
                        print(
                            f"compare: {done}/{total} {mix}, {policy}: p99 {p99:.2f} ms, "
                            f"{block.work:.1f} {block.unit}/s, unaccounted "
                            f"{block.unaccounted_ratio:+.1%}, stolen {block.steal_ratio:.1%}",
                            flush=True,
                        )


if __name__ == "__main__":
    sys.exit(main())
