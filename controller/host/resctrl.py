# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resctrl mount of this host, and the hardware's capabilities according to its ``info/``.

Reads only. Interface: Documentation/arch/x86/resctrl.rst of Linux. A feature without files in
``info/`` does not exist.
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

# The usual mount point; the kernel makes this directory if it supports resctrl.
RESCTRL_DIR = Path("/sys/fs/resctrl")
# The kernel's value for "no limit" with its own control loop, mba_MBps (MBA_MAX_MBPS).
MBPS_UNLIMITED = 2**32 - 1
_PERCENT_MAX = 100


class ResctrlMount(NamedTuple):
    """A resctrl mount; ``options`` are those of the file system (``cdp``, ``mba_MBps``)."""

    point: Path
    options: frozenset[str]


class ResctrlInfo(NamedTuple):
    """Content of ``info/``; ``facts`` is the part that the planner needs.

    ``closids``: largest number of control groups, the root group included; ``rmids``: largest
    number of monitored groups; 0: none. ``cdp``: code and data have separate masks. ``sparse``:
    masks may have gaps. ``shareable``: mask of the ways that devices may use as well.
    ``features``: the monitoring features.
    """

    facts: ResctrlFacts
    closids: int
    rmids: int
    cdp: bool
    sparse: bool
    shareable: int
    features: frozenset[str]


def find_mount(mountinfo: str | None = None) -> ResctrlMount | None:
    """Return the resctrl mount in *mountinfo* (default: /proc/self/mountinfo), if any."""
    for mount in mounts(mountinfo, {"resctrl"}):
        if mount.root == "/":
            return ResctrlMount(mount.point, mount.options)
    return None


def read_info(mount: ResctrlMount) -> ResctrlInfo:
    """Read ``info/`` and the root group's schemata of *mount*.

    :raises OSError: a file cannot be read (resctrl was unmounted meanwhile).
    :raises ValueError: a file has an unknown format.
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
        # min_bandwidth and bandwidth_gran are still in percent then; every number is valid.
        return facts._replace(mba_unit=MbaUnit.MBPS, mba_min=1, mba_max=MBPS_UNLIMITED)
    if _text(bandwidth / "delay_linear", "1") == "1":
        return facts._replace(mba_min=least, mba_max=_PERCENT_MAX, mba_step=step)
    # The kernel does not support Intel's non-linear scale, so this is AMD. Its maximum is found
    # only in the schemata of a group without restrictions.
    most = max(int(value) for value in root.values())
    return facts._replace(
        mba_unit=MbaUnit.ABSOLUTE, mba_min=max(1, least), mba_max=most, mba_step=step
    )


def _text(path: Path, default: str) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return default
