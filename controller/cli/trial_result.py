# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The result of a trial as ``sweetpoint trial`` prints it, and its progress."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
import json
import sys
from types import MappingProxyType

from controller.cli.trial_page import trial_page
from controller.cli.trial_text import changed, lines, plain
from controller.host.names import printable
from controller.trial.analysis import analyse
from controller.trial.blocks import Results, changes_of

__all__ = ("document", "say", "tell")


def say(lines: Iterable[str]) -> None:
    """Print progress, which is not part of the result."""
    for line in lines:
        print(f"sweetpoint: {line}", file=sys.stderr, flush=True)


def tell(
    arguments: argparse.Namespace,
    results: Sequence[Results],
    ended: str,
    more: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Print what *results*, one of each node, show; *ended*: why it ended before its time.

    :param more: what JSON has in addition.
    """
    if arguments.json:
        print(json.dumps(document(results, ended, more), indent=2))
    else:
        _tell_lines(results, ended)
    if arguments.report is not None:  # last: a disk that is full must not cost the result
        page = trial_page(results, ended)
        arguments.report.write_text(page, encoding="utf-8", errors="backslashreplace")


def document(
    results: Sequence[Results], ended: str, more: Mapping[str, object]
) -> dict[str, object]:
    """Return what *results* show, for JSON; *more* and *ended* as for ``tell``."""
    return {
        **more,
        "nodes": [each.node for each in results],
        "arms": results[0].design.names,
        "ended": ended,
        "left_out": sum(each.left_out for each in results),
        "changes": [change._asdict() for change in changes_of(results)],
        "findings": [*map(plain, analyse([each.pairs for each in results]))],
    }


def _tell_lines(results: Sequence[Results], ended: str) -> None:
    nodes = [each.pairs for each in results]
    if ended:
        print(f"ended before its time: {printable(ended)}")
    for each in results:
        if each.note:
            print(printable(f"{each.node}: {each.note}"))
    for line in lines(nodes, analyse(nodes), results[0].design.names):
        print(printable(line))
    for change in changes_of(results):
        print(printable(f"  {changed(change, results[0].design.policy)}"))
