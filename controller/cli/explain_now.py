# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a running agent says about a name now, which its history has a minute later at most."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
import time
from typing import Any

from controller.cli.common import WrongAgentError, find_config
from controller.cli.held import Held, LimitedRow, of_page
from controller.cli.status import limited_lines, plain
from controller.cli.top_pages import SourceError, own_page
from controller.config.load import load
from controller.config.yaml_document import ConfigError
from controller.core.decision import describe_slow
from controller.core.model import QosClass
from controller.host.state_dir import owners
from controller.page.view import ServiceRow, Tracker, mapping, records, text

__all__ = ("Now", "ask_agent", "now_of")


@dataclass(frozen=True, slots=True)
class Now:
    """What holds for a workload or a service now.

    ``is_there``: the agent has such a workload. ``limited`` are its limits, of a pod those of its
    containers. ``indicators`` are those of a service, ``slow`` says why it is slow.
    """

    held: Held
    is_there: bool
    limited: tuple[LimitedRow, ...]
    indicators: tuple[ServiceRow, ...]
    slow: tuple[str, ...] = ()

    @property
    def is_incident(self) -> bool:
        """Whether it is limited, or above a sweet point."""
        return bool(self.limited) or any((row.ratio or 0.0) > 1 for row in self.indicators)

    def lines(self) -> Iterator[str]:
        """Yield the lines for people."""
        if not self.is_there:
            yield "now: the agent has no workload of this name"
        for row in self.indicators:
            ratio = "" if row.ratio is None else f" ({row.ratio:.1f} times)"
            yield f"now: {row.indicator} {row.value}, its sweet point is {row.sweet_point}{ratio}"
        yield from (f"now: {each}" for each in self.slow)
        for workload in self.limited:
            first, *rest = limited_lines(workload, self.held)
            yield f"now: {first}"
            yield from rest
        if self.is_there and not self.indicators and not self.limited:
            yield "now: not limited"

    def plain(self) -> dict[str, Any]:
        """Return the same for programs."""
        found = plain(self.held)
        limited = [asdict(each)["path"] for each in self.limited]
        return {
            "time": found["time"],
            "is_there": self.is_there,
            "limited": [each for each in found["limited"] if each["path"] in limited],
        }


def ask_agent(arguments: argparse.Namespace) -> Mapping[str, Any] | None:
    """Return the page of the agent whose history is read; ``None``: it is not asked for or not had.

    It is not asked for by the time of --at, nor about the copied history of --data-dir.
    """
    if arguments.at is not None or arguments.data_dir is not None:
        return None
    try:
        config = find_config(arguments)
        return own_page(config) if owners(load(config).state_dir) else None
    except (WrongAgentError, ConfigError, SourceError):
        return None


def now_of(page: Mapping[str, Any], name: str) -> Now:
    """Return what the agent of *page* says about the workload, pod or service *name*."""
    held = of_page(page, time.time_ns())
    paths, is_service = set(), False
    for each in records(page.get("workloads")):
        own, service = text(each.get("name")), text(each.get("service"))
        is_ls = each.get("qos") == QosClass.LS
        whole = service if is_ls or each.get("container_of") is not None else own
        if name in (own, whole):
            paths.add(text(each.get("path"), 4096))
            is_service |= is_ls
    rows = Tracker(service=name).update(page).services if is_service else ()
    limited = tuple(each for each in held.limited if each.path in paths)
    slow = tuple(
        describe_slow(*(text(each.get(key), 400) for key in ("because", "name", "evidence")))
        for each in records(mapping(page.get("plan")).get("slow"))
        if is_service and each.get("service") == name
    )
    return Now(held, bool(paths), limited, rows, slow)
