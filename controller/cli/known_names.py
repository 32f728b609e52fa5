# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the agent of this host knows a service or workload of a name."""

from collections.abc import Iterable
from pathlib import Path
import sys

from controller.cli.top_pages import SourceError, own_page
from controller.config.load import load
from controller.config.yaml_document import ConfigError
from controller.core.model import QosClass
from controller.host.names import did_you_mean
from controller.host.pause_file import EVERYTHING, SERVICE, WORKLOAD
from controller.page.view import records

__all__ = ("unknown_name",)

_KINDS = {SERVICE: "service", WORKLOAD: "best-effort workload"}


def unknown_name(config: Path, state_dir: Path, named: Iterable[tuple[str, str]]) -> str:
    """Return what is wrong with the first of *named* that does not exist; empty: nothing.

    If the agent cannot be asked, a note says so, and any name counts as known.

    :param config: the configuration of the agent that uses *state_dir*.
    :param named: (scope, name) as in a pause.
    """
    wanted = [each for each in named if each[0] != EVERYTHING]
    if not wanted:
        return ""
    try:
        known = _names(config, state_dir)
    except (ConfigError, SourceError, OSError) as error:
        print(f"sweetpoint: the names are not compared with the agent's: {error}", file=sys.stderr)
        return ""
    for scope, name in wanted:
        if name not in known[scope]:
            hint = did_you_mean(name, known[scope])
            return f"there is no {_KINDS[scope]} {name!a} now{hint and f'; {hint}'}"
    return ""


def _names(config: Path, state_dir: Path) -> dict[str, set[str]]:
    """Return the names of services and workloads, and of entries of the configuration."""
    loaded = load(config)
    if loaded.state_dir != state_dir:
        raise SourceError(f"{config} is of an agent with another state_dir")
    known: dict[str, set[str]] = {SERVICE: set(), WORKLOAD: set()}
    for rule in loaded.workloads:
        _add(known, rule.qos, rule.name, rule.service)
    for each in records(own_page(config).get("workloads")):
        name, service = str(each.get("name")), str(each.get("service"))
        whole = name if each.get("container_of") is None else service
        _add(known, str(each.get("qos")), whole, service)
    return known


def _add(known: dict[str, set[str]], qos: str, name: str, service: str) -> None:
    if qos == QosClass.LS:
        known[SERVICE].add(service)
    elif qos == QosClass.BE:
        known[WORKLOAD].add(name)
