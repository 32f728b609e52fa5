# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint advise`` promises after observing a load, and what came of enforcing it.

A service and two jobs share a CPU: first observed, then enforced.
"""

import json
from pathlib import Path
import signal
import time
from typing import Any

import pytest

from controller.cli.main import main
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site, eventually
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh

pytestmark = [pytest.mark.kernel]

PROFILE = """\
name: nginx
indicators:
  runq_p99: {sweet_point: 2ms}
channels: [cpu]
sched_idle: %s
"""
EXTRA = "profiles: [profile.yaml]\n"


# Seconds by mode.
SHORT = {"observe": 60, "enforce": 60}
LONG = {"observe": 20 * 60, "enforce": 10 * 60}


@pytest.mark.parametrize(
    "lengths_s",
    [
        pytest.param(SHORT, id="short", marks=pytest.mark.bench),
        pytest.param(LONG, id="long", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("sched_idle", ["true", "false"])
def test_promised_and_come(
    cgroup_root: Path,
    cgroup_layout: CgroupLayout,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sched_idle: str,
    lengths_s: dict[str, int],
) -> None:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    outweigh(site.root, 100)  # what else runs on this machine must not count
    (site.home / "profile.yaml").write_text(PROFILE % sched_idle)
    site.write(EXTRA, mode="observe")
    jobs = [Load(path, "hog", CPU) for path in site.batch]
    wanted = [Load(site.service, "bursts", CPU), *jobs]
    used_cpus: dict[str, float] = {}
    with loads(wanted, seconds=sum(lengths_s.values()) + 300) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        for mode, length_s in lengths_s.items():
            site.write(EXTRA, mode=mode)
            agent.process.send_signal(signal.SIGHUP)
            eventually(mode, 10, lambda mode=mode: agent.status()["mode"] == mode)
            before_ns = running.schedstat(site.root / "batch").oncpu_ns
            time.sleep(length_s)
            used_ns = running.schedstat(site.root / "batch").oncpu_ns - before_ns
            used_cpus[mode] = used_ns / 1e9 / length_s
        assert agent.stop() == 0
    advice = ask(site, capsys)
    (service,) = advice["services"]
    # A mode in which the service never suffered is not in the advice.
    suffered = {
        mode: service["modes"].get(mode, {"suffered_ns": 0})["suffered_ns"] / 1e9 / length_s
        for mode, length_s in lengths_s.items()
    }
    observed_s = lengths_s["observe"]
    caused = service["modes"]["observe"]["caused_ns"] / 1e9 / observed_s
    cut = advice["taken_at_most"]["cut_cpu_s"] / observed_s
    with capsys.disabled():
        print(
            f"\nsched-idle {sched_idle}, seconds {lengths_s}\n"
            f"  suffers {suffered['observe']:.1%} of the time, promised: at most {caused:.1%} "
            f"less, enforced: {suffered['enforce']:.1%}\n"
            f"  best-effort uses {used_cpus['observe']:.3f} CPUs, promised: at most {cut:.3f} "
            f"less, enforced: {used_cpus['enforce']:.3f}"
        )
    assert suffered["enforce"] < suffered["observe"] / 2
    assert used_cpus["observe"] - used_cpus["enforce"] <= cut + 0.05


def ask(site: Site, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["advise", "--json", "--since", "2h", "--data-dir", str(site.home / "data")]) == 0
    return dict(json.loads(capsys.readouterr().out))
