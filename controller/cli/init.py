# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint init``: writes a first configuration from what runs on this host."""

import argparse
from collections.abc import Iterable, Iterator
import json
import os
from pathlib import Path
import re
from typing import TYPE_CHECKING

from controller.cli.common import DONE, FAILED, fail

if TYPE_CHECKING:
    from controller.workloads.survey import Unit

__all__ = ("EXAMPLE", "HELP", "add_arguments", "first_config", "main")

HELP = "write a first configuration from what runs on this host"
EXAMPLE = "sweetpoint init --write /etc/sweetpoint/config.yaml"

_KUBERNETES = (
    "this host is a node of Kubernetes ({roots}): its workloads are pods, which need no list; "
    "install the chart (deploy/chart), or run the agent here with "
    "'kubernetes: {{kubeconfig: FILE}}' "
    "(docs/KUBERNETES.md)"
)

_HEAD = """\
# A first configuration, made by 'sweetpoint init' from what ran on this host.
# 'sweetpoint check --config FILE' says what it means here; with --resolved it lists all other keys.

# observe: measure, decide and report; no knob is written. The log and /statusz have the decisions.
# Change this to enforce when they are those that you want.
mode: observe

workloads:
"""
_SERVICES = """\
  # Services to protect. The profile has the sweet points; those of the shipped profiles are
  # starting values. Delete what is not latency-sensitive.
"""
_NO_SERVICES = """\
  # No service was recognised. Add those to protect, like this one:
  # - name: web
  #   cgroup: /system.slice/nginx.service
  #   class: latency-sensitive
  #   profile: nginx
"""
_BATCH = """\
  # Best-effort work, which may be squeezed. To start a job here:
  #   systemd-run --slice={slice} --property=CPUAccounting=yes COMMAND
  - name: batch
    cgroup: {pattern}
    class: best-effort
"""
_OTHERS = """\
  # Other services that ran, most CPU time first. For each one that matters, remove the '# ' and say
  # which it is: latency-sensitive, best-effort, or system (measured and never touched).
"""
_UNCONTROLLED = """\
  # Without the cpu controller, and so neither measured nor steered. It is enabled, for example, by
  #   systemctl set-property UNIT CPUWeight=100
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument("--write", type=Path, metavar="FILE", help="write to FILE, not to stdout")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 the host is a Kubernetes node or FILE cannot be written."""
    from controller.host.facts import HostError, find_cgroup_layout
    from controller.workloads.pods.cgroups import find_roots
    from controller.workloads.survey import survey

    try:
        layout = find_cgroup_layout()
    except (HostError, OSError) as error:
        return fail(error, FAILED)
    if roots := find_roots(layout.mount):
        return fail(_KUBERNETES.format(roots=", ".join(roots)), FAILED)
    text = first_config(survey(layout))
    if arguments.write is None:
        print(text, end="")
        return DONE
    try:
        _write(arguments.write, text, replace=arguments.force)
    except FileExistsError:
        return fail(f"{arguments.write} exists; --force replaces it", FAILED)
    except OSError as error:
        return fail(error, FAILED)
    print(f"wrote {arguments.write}; next: sweetpoint check --config {arguments.write}")
    return DONE


def first_config(units: Iterable["Unit"]) -> str:
    """Return a configuration with *units*: those with a class as workloads, the others as comments.

    It names no cgroup that a start of the agent would miss, apart from units that end before it.
    """
    from controller.core.model import QosClass
    from controller.workloads.survey import BATCH_SLICE

    entries = list(_entries(units))
    services = [entry for unit, entry in entries if unit.controlled and unit.qos is QosClass.LS]
    yielding = [entry for unit, entry in entries if unit.controlled and unit.qos is QosClass.BE]
    others = [entry for unit, entry in entries if unit.controlled and unit.qos is None]
    uncontrolled = [entry for unit, entry in entries if not unit.controlled]
    batch = _BATCH.format(slice=BATCH_SLICE[1:], pattern=json.dumps(f"{BATCH_SLICE}/*"))
    parts = [_HEAD, _SERVICES if services else _NO_SERVICES, *services, "\n", batch, *yielding]
    if others:
        parts += ["\n", _OTHERS, *map(_commented, others)]
    if uncontrolled:
        parts += ["\n", _UNCONTROLLED, *map(_commented, uncontrolled)]
    return "".join(parts)


def _entries(units: Iterable["Unit"]) -> Iterator[tuple["Unit", str]]:
    """Yield each unit with its entry of ``workloads``; the names differ."""
    names = {"batch"}
    for unit in units:
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", unit.name)
        name, number = stem, 1
        while name in names:
            number += 1
            name = f"{stem}-{number}"
        names.add(name)
        used = "" if unit.cpu_s is None else f"  # used {_hours(unit.cpu_s)} of CPU time"
        lines = [
            f"  - name: {json.dumps(name)}{used}",
            f"    cgroup: {json.dumps(unit.path)}",
            f"    class: {unit.qos or 'latency-sensitive'}",
        ]
        if unit.profile:
            lines.append(f"    profile: {unit.profile}")
        yield unit, "\n".join(lines) + "\n"


def _commented(entry: str) -> str:
    return "".join(f"  # {line[2:]}\n" for line in entry.splitlines())


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}h" if seconds >= 3600 else f"{seconds / 60:.1f}m"


def _write(file: Path, text: str, *, replace: bool) -> None:
    """Write *text* to *file*, all of it or nothing.

    :raises FileExistsError: there is a file, and *replace* is false.
    :raises OSError: the file cannot be written.
    """
    file.parent.mkdir(exist_ok=True)
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8")
        if replace:
            new.replace(file)
        else:
            file.hardlink_to(new)
    finally:
        new.unlink(missing_ok=True)
