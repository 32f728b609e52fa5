# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint explain``: what happened to a workload or a service, from the history on disk."""

import argparse
from dataclasses import asdict
from datetime import datetime, time, timedelta
import json
from pathlib import Path
import sys
from typing import TYPE_CHECKING, Any

from controller.cli.common import (
    DONE,
    FAILED,
    WRONG,
    add_data_dir,
    fail,
    find_data_dir,
    rfc3339,
)
from controller.host.os_errors import reason

if TYPE_CHECKING:
    from controller.agent.history.ask import Answer

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main", "no_history", "span_ns")

HELP = "say when and why a workload was limited or evicted, or a service suffered"
EXAMPLE = "sweetpoint explain encode --since 2h"
# Around the time that --at names.
_AROUND = timedelta(seconds=60)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument(
        "name",
        nargs="?",
        help="workload or service; of a pod also its name only; without one all names are listed",
    )
    parser.add_argument(
        "--since", default="24h", metavar="TIME", help="2h, or a time (default: %(default)s)"
    )
    parser.add_argument(
        "--at", metavar="TIME", help="only what lasted at this time: 03:10, 2026-01-31T03:10"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_data_dir(parser)


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 no such name or no history, 2 not a time."""
    from controller.agent.history.ask import UnknownNameError, ask
    from controller.cli.explain_now import ask_agent, now_of
    from controller.host.names import printable

    try:
        since_ns, until_ns = span_ns(arguments.since, arguments.at, datetime.now().astimezone())
    except ValueError as error:
        return fail(error, WRONG)
    data_dir = find_data_dir(arguments)
    try:
        if arguments.name is None:
            return _list_names(data_dir, since_ns, until_ns)
        answer = ask(data_dir, arguments.name, since_ns, until_ns)
    except UnknownNameError as error:
        page = ask_agent(arguments)
        if page is not None and now_of(page, arguments.name).is_there:
            return fail(_too_young(arguments.name), FAILED)
        hint = f"; did you mean {', '.join(map(printable, error.close))}?" if error.close else ""
        return fail(f"the history has no {printable(arguments.name)!r}{hint}", FAILED)
    except OSError as error:
        return fail(no_history(data_dir, error), FAILED)
    for problem in answer.problems:
        print(f"sweetpoint: left out: {printable(problem)}", file=sys.stderr)
    page = ask_agent(arguments)
    now = None if page is None else now_of(page, answer.name)
    if arguments.json:
        found = {**_plain(answer), "now": None if now is None else now.plain()}
        print(json.dumps(found, indent=2))
        return DONE
    from controller.cli.explain_text import text

    for line in text(answer, now):
        print(line)
    return DONE


def _too_young(name: str) -> str:
    from controller.host.names import printable

    return (
        f"the history has no {printable(name)!r} yet: it is written within a minute; "
        "'sweetpoint status' says what is in force now"
    )


def _list_names(data_dir: Path, since_ns: int, until_ns: int) -> int:
    from controller.agent.history.incidents import Coverage
    from controller.agent.history.reader import HistoryReader
    from controller.agent.history.records import MOMENTS
    from controller.agent.history.workload_story import WorkloadStory
    from controller.core.model import QosClass
    from controller.host.names import printable

    story = WorkloadStory("", Coverage(since_ns, until_ns))
    story.read(HistoryReader(data_dir, MOMENTS).lines())
    found = story.known.values()
    services = {each.service for each in found if each.qos is QosClass.LS}
    others = {each.whole_name: each.qos for each in found if each.qos is not QosClass.LS}
    named = [(name, "service") for name in sorted(services)]
    named += [(name, f"{others[name]} workload") for name in sorted(others)]
    if not named:
        return fail(f"the history in {data_dir} has no name of this time; try --since", FAILED)
    width = max(len(printable(name)) for name, _ in named)
    for name, kind in named:
        print(f"{printable(name):<{width}}  {kind}")
    return DONE


def no_history(data_dir: Path, error: OSError) -> str:
    """Return that *error* is why the history in *data_dir* cannot be read, and what to do."""
    if isinstance(error, FileNotFoundError):
        return f"{data_dir} has no history yet; --config names another agent"
    return f"the history in {data_dir} cannot be read: {reason(error)}"


def span_ns(since: str, at: str | None, now: datetime) -> tuple[int, int]:
    """Return the first and the last ns since 1970 that *since* and *at* name.

    :param now: an aware time; a time without a date is the last one before it, and without a zone
        that of this host.
    :raises ValueError: one of them is not a time.
    """
    if at is not None:
        middle = _moment(at, now)
        try:
            return _ns(middle - _AROUND), _ns(middle + _AROUND)
        except OverflowError:
            raise ValueError(f"{at!r} is too far from now") from None
    from controller.core.units import UnitError, parse_duration

    try:
        return max(0, _ns(now) - parse_duration(since)), _ns(now)
    except UnitError:
        return _ns(_moment(since, now)), _ns(now)


def _moment(text: str, now: datetime) -> datetime:
    try:
        # "2026" would be a time of day.
        clock_time = time.fromisoformat(text if ":" in text else "")
    except ValueError:
        try:
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            raise ValueError(
                f"{text!r} is not a time such as 2h, 03:10 or 2026-01-31T03:10"
            ) from None
    zone = clock_time.tzinfo
    today = now.date() if zone is None else now.astimezone(zone).date()
    # Without a zone it is the local time of that day, which may have another offset than now.
    found = datetime.combine(today, clock_time).astimezone()
    if found > now:
        found = datetime.combine(today - timedelta(days=1), clock_time).astimezone()
    return found


def _ns(moment: datetime) -> int:
    return round(moment.timestamp() * 1e6) * 1000


def _plain(answer: "Answer") -> dict[str, Any]:
    """Return *answer* with plain types; times are RFC 3339, other keys keep their units.

    ``summary`` of an incident is the sentence that the text begins with.
    """
    from controller.agent.history.incidents import Squeeze, Suffering, helped
    from controller.cli.explain_text import sentence as summary

    incidents = []
    for each in answer.story.incidents:
        fields = asdict(each)
        began, ended = fields.pop("began_ns"), fields.pop("ended_ns")
        extra = {}
        if isinstance(each, Squeeze | Suffering):
            extra["helped"] = helped(each.effect)
        incidents.append(
            {
                "kind": type(each).__name__.lower(),
                "began": rfc3339(began),
                "ended": None if ended is None else rfc3339(ended),
                "summary": summary(each),
                **fields,
                **extra,
            }
        )
    coverage = asdict(answer.story.coverage)
    times: dict[str, str | None] = {
        key[:-3]: rfc3339(coverage.pop(key)) for key in ("since_ns", "until_ns")
    }
    for key in ("first_ns", "last_ns"):
        value = coverage.pop(key)
        times[key[:-3]] = None if value is None else rfc3339(value)
    return {
        "name": answer.name,
        "class": answer.qos,
        "coverage": {**times, **coverage},
        "incidents": incidents,
    }
