# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The systemd units of this host that may become workloads, found in the cgroup tree.

A unit is found if it has a cgroup in the hierarchy of the cpu controller. On cgroup v1 systemd
makes one only for units with CPU accounting or a limit (systemd.resource-control(5)).
"""

from collections.abc import Iterator
import os
from pathlib import Path
import re
from typing import NamedTuple

from controller.core.model import QosClass
from controller.host.facts import CgroupLayout

__all__ = ("BATCH_SLICE", "Unit", "survey")

# The slice in which best-effort work is suggested to be started; its units are not listed.
BATCH_SLICE = "/batch.slice"

_MAX_UNITS = 500
_MAX_DEPTH = 5
# The characters of unit names (systemd.unit(5)). None of them is special in a pattern.
_UNIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.\\@-]{0,200}\.service")
_SLICE = re.compile(r"[A-Za-z0-9-][A-Za-z0-9:_.\\@-]{0,200}\.slice")
# Servers that are latency-sensitive wherever they run, with the shipped profile that fits.
_SERVERS = {
    "nginx": "nginx",
    "redis": "redis",
    "redis-server": "redis",
    "valkey": "redis",
    "valkey-server": "redis",
    "memcached": "memcached",
    **dict.fromkeys(
        ("apache2", "caddy", "envoy", "haproxy", "httpd", "mariadb", "mongod", "mysql", "mysqld",
         "postgresql", "rabbitmq-server", "traefik", "varnish"),
        "default",
    ),
}  # fmt: skip
_OF_THE_SYSTEM = re.compile(
    r"(systemd-.*|.*getty|dbus(-broker)?|sshd?|cron|crond|rsyslog|polkit|udisks2|networking"
    r"|NetworkManager|chronyd?|ntpd?|containerd|docker|crio|kubelet|sweetpoint|user|init)"
)
_WEIGHTS = {"v1": ("cpu.shares", 1024), "v2": ("cpu.weight", 100)}


class Unit(NamedTuple):
    """A service of systemd with a cgroup.

    ``qos`` is the class that its name or its weight suggests, ``None`` if neither does; ``profile``
    belongs to a latency-sensitive one. ``cpu_s`` is the CPU time that it used, ``None`` where this
    hierarchy does not count it. Without ``controlled`` its cgroup has no cpu controller.
    """

    name: str
    path: str
    qos: QosClass | None
    profile: str
    cpu_s: float | None
    controlled: bool


def survey(layout: CgroupLayout) -> tuple[Unit, ...]:
    """Return the services of this host, most CPU time first; those of the system are left out.

    At most 500 units are returned, and slices are followed down to the fifth level.
    """
    units: list[Unit] = []
    for path in _services(layout.mount):
        if len(units) >= _MAX_UNITS:
            break
        unit = _unit(layout, path)
        if unit.qos is not QosClass.SYSTEM:
            units.append(unit)
    return tuple(sorted(units, key=lambda unit: (-(unit.cpu_s or 0.0), unit.path)))


def _services(mount: Path) -> Iterator[str]:
    level = [""]
    for _ in range(_MAX_DEPTH):
        below: list[str] = []
        for parent in level:
            for name in _directories(mount / parent[1:]):
                path = f"{parent}/{name}"
                if _UNIT.fullmatch(name):
                    yield path
                elif _SLICE.fullmatch(name) and path != BATCH_SLICE:
                    below.append(path)
        level = below


def _directories(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
    except OSError:  # removed in the meantime
        return []


def _unit(layout: CgroupLayout, path: str) -> Unit:
    name = path.rpartition("/")[2].removesuffix(".service")
    folder = layout.mount / path[1:]
    qos: QosClass | None = None
    profile = ""
    if _OF_THE_SYSTEM.fullmatch(name.partition("@")[0]):
        qos = QosClass.SYSTEM
    elif (server := name.partition("@")[0]) in _SERVERS:
        qos, profile = QosClass.LS, _SERVERS[server]
    elif _yields(layout, folder):
        qos = QosClass.BE
    return Unit(
        name=name,
        path=path,
        qos=qos,
        profile=profile,
        cpu_s=_cpu_s(folder),
        controlled=layout.version == "v1" or (folder / "cpu.max").exists(),
    )


def _yields(layout: CgroupLayout, folder: Path) -> bool:
    """Return whether the cgroup has less than the default weight, or is idle."""
    file, default = _WEIGHTS[layout.version]
    weight = _number(folder / file)
    return _number(folder / "cpu.idle") == 1 or (weight is not None and weight < default)


def _cpu_s(folder: Path) -> float | None:
    if (ns := _number(folder / "cpuacct.usage")) is not None:
        return ns / 1e9
    us = _number(folder / "cpu.stat", "usage_usec ")
    return None if us is None else us / 1e6


def _number(file: Path, key: str = "") -> int | None:
    try:
        lines = file.read_text(encoding="ascii").splitlines()
        return next((int(line.removeprefix(key)) for line in lines if line.startswith(key)), None)
    except (OSError, ValueError):
        return None
