# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint replay``: computes the plans of a recording or of the history again."""

import argparse
from pathlib import Path
import sys
from typing import TYPE_CHECKING

from controller.cli.common import DONE, FAILED, WRONG, fail, find_unwritable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controller.agent.recording import Entry
    from controller.core.decision import Plan
    from controller.core.settings import Settings

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "compute the plans of a recording again, with the same or other settings"
EXAMPLE = "sweetpoint replay recording.jsonl.gz --config new.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument(
        "recording",
        type=Path,
        help="a file of run --record, or the data directory of the agent: its history, which is "
        "thinned, and so replayed in observe mode",
    )
    parser.add_argument(
        "--config", type=Path, help="settings and profiles that replace the recorded ones"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the result as HTML")


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 plans differ or a bad recording, 2 invalid configuration.

    Different plans are no failure with other settings (--config), of the history, and of a
    recording without parts of the law that cannot be switched off any more.
    """
    from controller.agent.recording import RecordingError
    from controller.config.load import ConfigError, load

    if problem := find_unwritable(arguments.report):
        return fail(problem, WRONG)
    try:
        settings = None if arguments.config is None else load(arguments.config).settings
        return _replay(arguments, settings)
    except ConfigError as error:
        return fail(error, WRONG)
    except (RecordingError, OSError) as error:
        return fail(error, FAILED)


def _replay(arguments: argparse.Namespace, settings: "Settings | None") -> int:
    from dataclasses import replace

    from controller.agent.recording import RecordingError, read, replay
    from controller.core.units import count

    path = arguments.recording
    if path.is_dir():
        return _replay_history(path, settings, arguments.report)
    ticks = different = 0
    explained = settings is not None
    for entry, plan in _reported(replay(read(path), settings), arguments.report, path):
        ticks += 1
        explained |= bool(entry.parts_off)
        # The words of the log may be those of another version.
        different += replace(plan, verdicts=()) != replace(entry.plan, verdicts=())
        _print_verdicts(plan)
    if not ticks:
        raise RecordingError(f"{path} has no tick")
    differ = "plan differs" if different == 1 else "plans differ"
    print(f"{count(ticks, 'tick')}, {different} {differ} from the recorded ones")
    return FAILED if different and not explained else DONE


def _replay_history(path: Path, settings: "Settings | None", report: Path | None) -> int:
    from dataclasses import replace

    from controller.agent.history.reader import HistoryReader
    from controller.agent.history.records import SNAPSHOTS
    from controller.agent.history.snapshots import entries
    from controller.agent.recording import replay
    from controller.core.model import Mode

    if settings is not None:
        settings = replace(settings, mode=Mode.OBSERVE)
    reader = HistoryReader(path, SNAPSHOTS)
    _print_means(_reported(replay(entries(reader.lines()), settings), report, path))
    for problem in reader.problems:
        print(f"sweetpoint: left out: {problem}", file=sys.stderr)
    return DONE


def _reported(
    replayed: "Iterator[tuple[Entry, Plan]]", report: Path | None, source: Path
) -> "Iterator[tuple[Entry, Plan]]":
    """Yield *replayed*, and write the *report* of it at its end."""
    replayed = _told(replayed)
    if report is None:
        yield from replayed
        return
    from controller.cli.replay_report import ReplayReport

    page = ReplayReport()
    yield from page.watch(replayed)
    page.write(report, source)


def _told(replayed: "Iterator[tuple[Entry, Plan]]") -> "Iterator[tuple[Entry, Plan]]":
    """Yield *replayed*, and say which parts of the law it was recorded without, if any."""
    told: tuple[str, ...] = ()
    for entry, plan in replayed:
        if entry.parts_off and entry.parts_off != told:
            told = entry.parts_off
            print(
                f"sweetpoint: recorded without these parts of the control law: {', '.join(told)}. "
                "They cannot be switched off any more, so plans may differ",
                file=sys.stderr,
            )
        yield entry, plan


def _print_means(replayed: "Iterator[tuple[Entry, Plan]]") -> None:
    sums: dict[str, tuple[float, float]] = {}
    snapshots = 0
    for entry, plan in replayed:
        snapshots += 1
        _print_verdicts(plan)
        recorded = {each.channel: each.applied for each in entry.plan.demands}
        for demand in plan.demands:
            before, after = sums.get(demand.channel, (0.0, 0.0))
            before += recorded.get(demand.channel, 0.0)
            sums[demand.channel] = before, after + demand.applied
    from controller.core.units import count

    print(count(snapshots, "snapshot"))
    for channel, (before, after) in sums.items():
        means = f"{before / snapshots:.3f} recorded, {after / snapshots:.3f} replayed"
        print(f"{channel}: mean demand {means}")


def _print_verdicts(plan: "Plan") -> None:
    from controller.host.names import printable

    for verdict in plan.verdicts:
        print(f"{plan.time_ns / 1e9:.3f} {printable(verdict.subject)}: {printable(verdict.text)}")
