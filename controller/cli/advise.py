# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint advise``: what enforcing would bring on this node, from the history on disk."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
import json
import sys
from typing import TYPE_CHECKING

from controller.cli.common import DONE, FAILED, WRONG, add_data_dir, clock, fail, find_data_dir
from controller.cli.explain import no_history, span_ns

if TYPE_CHECKING:
    from controller.agent.history.advice import Advice, ModeTime, ServiceAdvice

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "say which services suffered, from what, and what enforcing would take and can give"
EXAMPLE = "sweetpoint advise --since 24h"
# Less than this without data is not worth a line: a start of the agent takes a moment.
_UNMEASURED_NS = 10 * 10**9
_CAUSES = 5
_DO = {
    "another-service": "keep the two services on different nodes, or give them CPUs of their own",
    "other-work": "give that work a class in the configuration, or move it away",
    "own-cpu-limit": "raise its CPU limit: no other work slows it down",
    "own-memory-limit": "raise its memory limit: no other work slows it down",
    "own-load": "give it more CPUs or replicas: it never had so much to do",
    "own-tasks": "give it more CPUs or fewer threads: its tasks wait for each other",
    "host": "ask the operator of the host: it takes CPU time from this machine",
    "disk": "give it another disk: no other work has most of this one",
    "link": "give it a faster link: no other work has most of this one",
    "elsewhere": "look outside this node: nothing measured here explains it",
}
_OTHER = {
    "free": "within the dead zone or too short",
    "self": "held back by its own limit",
    "steal": "the host took CPU time",
    "not-be": "not caused by best-effort",
    "hold": "no data",
    "safe": "no data",
    "paused": "paused",
    "other": "another service decided for the channel",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument(
        "--since", default="24h", metavar="TIME", help="2h, or a time (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_data_dir(parser)


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 no history, 2 not a time."""
    from controller.agent.history.advice import Advice
    from controller.agent.history.incidents import Coverage
    from controller.agent.history.reader import HistoryReader
    from controller.agent.history.records import MOMENTS, SNAPSHOTS
    from controller.agent.history.sizes import ServiceUses
    from controller.cli.advise_limits import present_limits
    from controller.cli.advise_sizes import (
        forecast_lines,
        plain_forecast,
        plain_sizes,
        size_lines,
    )
    from controller.core.units import NS_PER_SEC
    from controller.host.names import printable
    from controller.host.store import Store
    from controller.kube.forecast_store import ForecastStore

    try:
        since_ns, until_ns = span_ns(arguments.since, None, datetime.now().astimezone())
    except ValueError as error:
        return fail(error, WRONG)
    advice, uses = Advice(Coverage(since_ns, until_ns)), ServiceUses(since_ns, until_ns)
    data_dir = find_data_dir(arguments)
    try:
        reader, snapshots = HistoryReader(data_dir, MOMENTS), HistoryReader(data_dir, SNAPSHOTS)
        advice.read(reader.lines())
        # Snapshots take most of the time to read, and each file has all that its lines need.
        if sys.stderr.isatty():
            print("sweetpoint: reading snapshots, some seconds for each day", file=sys.stderr)
        uses.read(snapshots.lines(since_ns / NS_PER_SEC))
    except OSError as error:
        return fail(no_history(data_dir, error), FAILED)
    for problem in dict.fromkeys((*reader.problems, *snapshots.problems)):
        print(f"sweetpoint: left out: {printable(problem)}", file=sys.stderr)
    limits = present_limits(uses)
    forecasts = ForecastStore(Store(data_dir)).read()
    if arguments.json:
        found = {
            **_plain(advice),
            "sizes": plain_sizes(uses, limits),
            "forecasts": {kind: plain_forecast(each, until_ns) for kind, each in forecasts.items()},
        }
        print(json.dumps(found, indent=2))
        return DONE
    for line in (
        *_lines(advice),
        *size_lines(uses, limits),
        *forecast_lines(forecasts, until_ns),
    ):
        print(printable(line))
    return DONE


def _plain(advice: "Advice") -> dict[str, object]:
    from controller.core.model import Mode

    services = []
    for each in advice.services.values():
        found = each.modes.get(Mode.OBSERVE)
        gain_ns = None if found is None else found.gain_ns
        services.append({**asdict(each), "gain_at_most_ns": gain_ns})
    observed = advice.observed_ns.get(Mode.OBSERVE)
    return {
        "observed_ns": dict(advice.observed_ns),
        "no_data_ns": advice.blind_ns,
        "services": services,
        "slow": {name: [each._asdict() for each in slow] for name, slow in advice.slow.items()},
        "taken_at_most": asdict(advice.taken) if observed else None,
        "taken_about": asdict(advice.took) if advice.observed_ns.get(Mode.ENFORCE) else None,
        "unreadable": advice.coverage.unreadable,
    }


def _lines(advice: "Advice") -> Iterator[str]:
    from controller.cli.explain_text import lasted
    from controller.core.model import Mode
    from controller.core.units import count

    coverage = advice.coverage
    yield f"{clock(coverage.since_ns)} to {clock(coverage.until_ns)}"
    if not advice.observed_ns:
        yield "The history holds nothing of this time."
        return
    times = [f"{lasted(time_ns)} in {mode} mode" for mode, time_ns in advice.observed_ns.items()]
    yield f"An agent ran for {' and '.join(times)}."
    if coverage.unreadable:
        parts = count(coverage.unreadable, "part")
        yield f"Not counted: {parts} of the history, which cannot be read."
    for channel, by_mode in advice.blind_ns.items():
        blind_ns = sum(by_mode.values())
        if blind_ns > _UNMEASURED_NS:
            yield (
                f"No data on {channel} for {lasted(blind_ns)} of these: what services suffered "
                "then is N/A."
            )
    suffered = sorted(advice.services.values(), key=_suffered_ns, reverse=True)
    if not suffered:
        yield _no_one(advice)
    for each in suffered:
        yield ""
        yield from _service(each, advice)
    yield from _slow(advice)
    yield ""
    if advice.observed_ns.get(Mode.ENFORCE):
        yield from _took(advice)
    if advice.observed_ns.get(Mode.OBSERVE):
        yield from _taken(advice)


def _no_one(advice: "Advice") -> str:
    if not advice.has_services:
        return "Suffered: N/A. There was no service in this time."
    if advice.blind_ns:
        return "No service was seen above a sweet point while there was data."
    return "No service was above a sweet point: there was nothing to protect."


def _service(each: "ServiceAdvice", advice: "Advice") -> Iterator[str]:
    from controller.cli.explain_text import lasted
    from controller.core.model import Mode
    from controller.page.words import describe_loop

    yield f"{each.service} on {each.channel}"
    for mode, time in each.modes.items():
        of_ns = advice.observed_ns[mode]
        worst = f"; at worst {describe_loop(time.worst)}" if time.worst is not None else ""
        # What was suffered without data is not known.
        blind_ns = advice.blind_ns.get(each.channel, {}).get(mode, 0)
        least = "at least " if blind_ns > _UNMEASURED_NS else ""
        yield (
            f"    {mode:<9} suffered {least}{lasted(time.suffered_ns)} of {lasted(of_ns)} "
            f"({_share(time.suffered_ns, of_ns)}){worst}"
        )
    yield f"    cause     {', '.join(_causes(each))}"
    observed = each.modes.get(Mode.OBSERVE)
    if observed is not None:
        yield f"    gain      {_gain(observed)}"
    elif advice.observed_ns.get(Mode.OBSERVE):
        yield "    gain      N/A: it did not suffer while the agent only observed"
    else:
        yield "    gain      N/A: nothing was only observed"


def _slow(advice: "Advice") -> Iterator[str]:
    """Yield why services were slow, and what to do where best-effort work is not the cause."""
    from controller.cli.explain_text import lasted

    for service, causes in advice.slow.items():
        total_ns = sum(each.time_ns for each in causes)
        yield ""
        yield f"{service} was slow for {lasted(total_ns)}, because of"
        for each in causes[:_CAUSES]:
            what = " ".join(filter(None, (each.because, each.name)))
            yield f"    {_share(each.time_ns, total_ns):>4} {what}: {each.evidence}"
        if len(causes) > _CAUSES:
            yield f"    and {len(causes) - _CAUSES} more"
        if do := _DO.get(causes[0].because):
            yield f"    to do     {do}"


def _causes(each: "ServiceAdvice") -> Iterator[str]:
    """Yield best-effort's average part with its culprits, then the other parts."""
    from controller.core.decision import PartKind
    from controller.core.explain import describe_part

    if each.be_share is None:
        yield "N/A: the part of best-effort work was never known"
    else:
        named = ", ".join(f"{share.workload} {share.share:.0%}" for share in each.culprits)
        yield f"best-effort {each.be_share:.0%} on average{named and f' ({named})'}"
    for part in each.parts:
        if part.kind is not PartKind.BEST_EFFORT and part.share >= 0.005:  # not "0%"
            yield describe_part(part)


def _gain(time: "ModeTime") -> str:
    from controller.cli.explain_text import lasted

    others: dict[str, int] = {}
    for state, state_ns in time.in_vain_ns.items():
        if state_ns:
            text = _OTHER.get(state, state)
            others[text] = others.get(text, 0) + state_ns
    parts = ", ".join(f"{lasted(state_ns)} {text}" for text, state_ns in others.items())
    if not time.gain_ns:
        return f"none: best-effort would not have been limited ({parts})"
    rest = f"; not in the rest ({parts})" if parts else ""
    return f"enforcing can help in at most {lasted(time.gain_ns)}{rest}"


def _taken(advice: "Advice") -> Iterator[str]:
    from controller.cli.explain_text import lasted
    from controller.core.model import Mode
    from controller.core.units import count

    taken = advice.taken
    if advice.best_effort and not taken.measured_ns:
        yield "Taken: N/A. The CPU use of best-effort work was not measured."
        return
    if not taken.cut_cpu_s:
        yield (
            "Enforcing would have limited no best-effort work "
            f"({count(advice.best_effort, 'workload')}, {_hours(taken.used_cpu_s)} used)."
        )
    else:
        part = taken.cut_cpu_s / taken.used_cpu_s if taken.used_cpu_s else 0.0
        yield (
            f"Enforcing would have taken at most {_hours(taken.cut_cpu_s)} of the "
            f"{_hours(taken.used_cpu_s)} ({part:.0%}) that best-effort used:"
        )
        yield from _largest(taken.by_workload)
    unmeasured_ns = advice.observed_ns.get(Mode.OBSERVE, 0) - taken.measured_ns
    if unmeasured_ns > _UNMEASURED_NS:
        yield f"Not counted: {lasted(unmeasured_ns)} in which the CPU use was not measured."
    if taken.evictions:
        yield f"Not counted: {count(taken.evictions, 'decided eviction')}."
    yield ""
    yield (
        "How sure is this? The suffering was measured. The cut is an upper bound: while observing "
        "nothing reacts, so a plan goes on to the floors where less might have been enough; only "
        "CPU quotas are counted. What a service gains is not known before it is tried: at most "
        "the time given above, and perhaps nothing. Enforce for a while and compare the two modes "
        "here."
    )


def _took(advice: "Advice") -> Iterator[str]:
    from controller.cli.explain_text import lasted

    took = advice.took
    if advice.best_effort and not took.measured_ns:
        yield "Taken: N/A. The CPU use of best-effort work was not measured."
    elif not took.limited_ns:
        yield f"Enforcing limited no best-effort work ({_hours(took.used_cpu_s)} used)."
    else:
        yield (
            f"Enforcing took about {_hours(took.taken_cpu_s)} from best-effort work, which used "
            f"{_hours(took.used_cpu_s)}; a limit was in force for {lasted(took.limited_ns)}. "
            "Counted is the use before a limit less the use with it:"
        )
        yield from _largest(took.by_workload)


def _largest(by_workload: Mapping[str, float]) -> Iterator[str]:
    largest = sorted(by_workload.items(), key=lambda item: -item[1])
    for name, cpu_s in largest[:10]:
        yield f"    {name} {_hours(cpu_s)}"
    if len(largest) > 10:
        yield f"    and {len(largest) - 10} more"


def _hours(cpu_s: float) -> str:
    if cpu_s >= 3600:
        return f"{cpu_s / 3600:.1f} CPU hours"
    return f"{cpu_s / 60:.1f} CPU minutes" if cpu_s >= 60 else f"{cpu_s:.0f} CPU seconds"


def _share(part_ns: int, whole_ns: int) -> str:
    return f"{part_ns / whole_ns:.0%}" if whole_ns else "N/A"


def _suffered_ns(each: "ServiceAdvice") -> int:
    return sum(time.suffered_ns for time in each.modes.values())
