# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint status``: what is limited on a node now, by how much, since when, and for whom."""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from controller.cli.common import (
    DONE,
    FAILED,
    WRONG,
    WrongAgentError,
    add_source,
    add_state_dir,
    clock,
    fail,
    find_config,
    find_state_dir,
    rfc3339,
)
from controller.host.state_dir import owners, release_command

if TYPE_CHECKING:
    from controller.cli.held import Held, HeldKnobRow, LimitedRow
    from controller.cli.top_pages import Page

__all__ = ("EXAMPLE", "HELP", "add_arguments", "limited_lines", "lines", "main", "plain")

HELP = "say what is limited on this node now, by how much, since when, for whom and why"
EXAMPLE = "sweetpoint status --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    add_source(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_state_dir(parser)


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 neither agent nor journal can be read, 2 wrong options."""
    from controller.cli.top_pages import SourceError
    from controller.config.yaml_document import ConfigError

    try:
        held, then = _held(arguments)
    except ConfigError as error:
        return fail(error, WRONG)
    except (SourceError, OSError) as error:
        return fail(error, FAILED)
    if arguments.json:
        print(json.dumps(plain(held), indent=2))
        return DONE
    for line in lines(held, then):
        print(line)
    return DONE


def _held(arguments: argparse.Namespace) -> tuple["Held", str]:
    """Return what is held, and what to do next."""
    from controller.cli.held import of_journal
    from controller.cli.top_pages import SourceError, own_page, pages
    from controller.config.yaml_document import ConfigError

    if arguments.url is not None or arguments.node is not None:
        arguments.once = arguments.raw = True
        arguments.interval = 2.0
        page = next(pages(arguments, threading.Event()))
        if isinstance(page, SourceError):
            raise page
        return _of_agent(page)
    state_dir = find_state_dir(arguments)
    runs = bool(owners(state_dir))
    problem = f"no agent runs with {state_dir}: this is what its journal says"
    # Only root can see an agent by its lock, but any user its pages.
    if runs or os.geteuid() != 0:
        try:
            return _of_agent(own_page(find_config(arguments)))
        except (SourceError, ConfigError, WrongAgentError) as error:
            if not runs:
                raise
            problem = f"the agent was not asked, so this is what its journal says: {error}"
    held = of_journal(state_dir, time.time_ns(), problem)
    then = f"'{release_command(state_dir)}' restores them now; an agent that starts does so first"
    return held, "" if runs else then


def _of_agent(page: "Page") -> tuple["Held", str]:
    from controller.cli.held import of_page

    held = of_page(page, time.time_ns())
    if held.mode == "observe":
        return held, "'sweetpoint advise' says what enforcing would bring"
    return held, "'sweetpoint explain NAME' says what led to it, 'sweetpoint pause' gives it back"


def lines(held: "Held", then: str) -> Iterator[str]:
    """Yield *held* as lines for people, and *then*, what to do next (may be empty)."""
    yield _head(held)
    for note in held.notes:
        yield f"! {note}"
    for workload in held.limited:
        yield from limited_lines(workload, held)
    if held.knobs:
        yield "Knobs that would be held:" if held.mode == "observe" else "Held knobs:"
        for knob in held.knobs:
            yield f"  {_knob(knob, held)}"
    if then and (held.limited or held.knobs):
        yield then


def _head(held: "Held") -> str:
    from controller.core.units import count

    at = clock(held.time_ns)
    if held.best_effort is None:
        return (
            f"{at}: {count(len(held.knobs), 'knob')} held" if held.knobs else f"{at}: no knob held"
        )
    done = "would be limited" if held.mode == "observe" else "limited"
    found = str(len(held.limited)) if held.limited else "none"
    workloads = count(held.best_effort, "best-effort workload")
    return f"{held.mode} mode, {at}: {found} of {workloads} {done}"


def limited_lines(row: "LimitedRow", held: "Held") -> Iterator[str]:
    """Yield how much, since when, for whom and why the workload *row* of *held* is limited."""
    from controller.core.units import format_cpus

    amount = ", ".join(row.knobs) if row.cpus is None else format_cpus(row.cpus)
    whom = f" because of {row.service} on {row.channel}" if row.service else ""
    would = "would be limited" if held.mode == "observe" else "limited"
    yield f"{row.name}: {amount}, {would}{_since(row.since_ns, held)}{whom}"
    if row.reason:
        yield f"    why       {row.reason}"


def _knob(row: "HeldKnobRow", held: "Held") -> str:
    since = _since(row.since_ns, held)
    if row.changed_ns is not None and row.changed_ns != row.since_ns:
        since += f", this value{_since(row.changed_ns, held)}"
    return f"{row.knob} of {row.target}: {row.original} -> {row.value}{since}"


def _since(since_ns: int | None, held: "Held") -> str:
    from controller.cli.explain_text import lasted

    if since_ns is None:
        return ""
    return f" since {clock(since_ns)} ({lasted(max(0, held.time_ns - since_ns))})"


def plain(held: "Held") -> dict[str, Any]:
    """Return *held* with times in RFC 3339, as ``explain --json`` has them."""

    def named(item: tuple[str, Any]) -> tuple[str, Any]:
        key, value = item
        if not key.endswith("_ns"):
            return item
        return key[:-3], None if value is None else rfc3339(value)

    found = dict(map(named, asdict(held).items()))
    for key in ("limited", "knobs"):
        found[key] = [dict(map(named, each.items())) for each in found[key]]
    return found
