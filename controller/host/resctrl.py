# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where this host has resctrl mounted, and what its ``info/`` says that the hardware can do.

Only reading. Interface: Documentation/arch/x86/resctrl.rst of Linux; what is not in ``info/``
is not there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from controller.core.settings import MbaUnit, ResctrlFacts
from controller.host.facts import mounts

__all__ = (
    "MBPS_UNLIMITED",
    "RESCTRL_DIR",
    "ResctrlInfo",
    "ResctrlMount",
    "find_mount",
    "parse_schemata",
    "read_info",
)

# Where resctrl is mounted by everybody; the kernel makes the directory if it has resctrl.
RESCTRL_DIR = Path("/sys/fs/resctrl")
# What the kernel shows for "no limit" where its own loop regulates (MBA_MAX_MBPS).
MBPS_UNLIMITED = 2**32 - 1
_PERCENT_MAX = 100


class ResctrlMount(NamedTuple):
    """A mounted resctrl; ``options`` are those of the file system (``cdp``, ``mba_MBps``)."""

    point: Path
    options: frozenset[str]


class ResctrlInfo(NamedTuple):
    """What ``info/`` says; ``facts`` is the part of it that the planner needs.

    ``closids`` is how many control groups there can be, the root group included, ``rmids``
    how many groups can be monitored; 0: none. ``cdp`` tells that code and data have masks of
    their own, ``sparse`` that masks may have holes. ``shareable`` are the ways that devices may
    use as well. ``features`` are those of monitoring.
    """

    facts: ResctrlFacts
    closids: int
    rmids: int
    cdp: bool
    sparse: bool
    shareable: int
    features: frozenset[str]


def find_mount(mountinfo: str | None = None) -> ResctrlMount | None:
    """Return the mounted resctrl of *mountinfo* (default: /proc/self/mountinfo), if any."""
    for mount in mounts(mountinfo, {"resctrl"}):
        if mount.root == "/":
            return ResctrlMount(mount.point, mount.options)
    return None


def read_info(mount: ResctrlMount) -> ResctrlInfo:
    """Return what *mount* offers.

    :raises OSError: it cannot be read (it was just unmounted).
    :raises ValueError: it says something that nobody knows.
    """
    info = mount.point / "info"
    schemata = parse_schemata((mount.point / "schemata").read_text(encoding="ascii"))
    cdp = (info / "L3CODE").is_dir()
    cache = info / ("L3CODE" if cdp else "L3")
    bandwidth, monitor = info / "MB", info / "L3_MON"
    ways = int(_text(cache / "cbm_mask", "0"), 16)
    facts = ResctrlFacts(
        domains=tuple(sorted({d for r in ("L3", "L3CODE", "MB") for d in schemata.get(r, {})})),
        llc_ways=ways.bit_length(),
        llc_min_ways=int(_text(cache / "min_cbm_bits", "1")),
        bandwidth="mbm_total_bytes" in _text(monitor / "mon_features", "").split(),
    )
    if "MB" in schemata:
        facts = _with_bandwidth(facts, mount, schemata["MB"])
    closids = [int(_text(r / "num_closids", "0")) for r in (cache, bandwidth) if r.is_dir()]
    return ResctrlInfo(
        facts=facts,
        closids=min(closids, default=0),
        rmids=int(_text(monitor / "num_rmids", "0")),
        cdp=cdp,
        sparse=_text(cache / "sparse_masks", "0") == "1",
        shareable=int(_text(cache / "shareable_bits", "0"), 16),
        features=frozenset(_text(monitor / "mon_features", "").split()),
    )


def parse_schemata(text: str) -> Mapping[str, Mapping[int, str]]:
    """Return the values of a ``schemata`` file by resource and domain, without padding.

    :raises ValueError: a line has another form.
    """
    found: dict[str, dict[int, str]] = {}
    for line in text.splitlines():
        resource, colon, domains = line.strip().partition(":")
        if not colon:
            raise ValueError(f"schemata: {line!r} has no resource")
        pairs = [pair.partition("=") for pair in domains.split(";")]
        found[resource] = {int(domain): value.strip() for domain, _, value in pairs}
    return found


def _with_bandwidth(
    facts: ResctrlFacts, mount: ResctrlMount, root: Mapping[int, str]
) -> ResctrlFacts:
    bandwidth = mount.point / "info" / "MB"
    least = int(_text(bandwidth / "min_bandwidth", "0"))
    step = int(_text(bandwidth / "bandwidth_gran", "1"))
    if "mba_MBps" in mount.options:
        # min_bandwidth and bandwidth_gran still speak of percent then; any number is taken.
        return facts._replace(mba_unit=MbaUnit.MBPS, mba_min=1, mba_max=MBPS_UNLIMITED)
    if _text(bandwidth / "delay_linear", "1") == "1":
        return facts._replace(mba_min=least, mba_max=_PERCENT_MAX, mba_step=step)
    # Intel's non-linear scale is not supported by the kernel; what is left is AMD, whose
    # maximum is nowhere but in a group that nobody has restricted.
    most = max(int(value) for value in root.values())
    return facts._replace(
        mba_unit=MbaUnit.ABSOLUTE, mba_min=max(1, least), mba_max=most, mba_step=step
    )


def _text(path: Path, default: str) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return default
