# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of ``bpf/classify.bpf.c`` and their maps from cgroups and links to classes.

The programs are loaded here and attached by the actuators of traffic control. The filters hold
the programs and their maps: after a crash packets are still classified as before, until the
filters are removed.
"""

from collections.abc import Mapping

from controller.probes.bpf.btf import Btf, ancestor_offsets
from controller.probes.bpf.libbpf import HashMap
from controller.probes.bpf.loader import ProgramSpec, load

__all__ = ("PROGRAMS", "Classifier", "trial")

PROGRAMS = ("egress", "ingress", "redirect", "mark", "learn")
_MAX_CGROUPS = 4096
_MAX_LINKS = 4096
# 7 MiB; the least recently used entries are evicted, and added again with the next packet out.
_MAX_FLOWS = 65536


class Classifier:
    """The loaded programs.

    :param major: major number of the HTB qdisc whose classes the programs return.
    :param system_class: minor number of the class of traffic without an assigned class.
    :param mark_mask: the contiguous bits of skb->mark that carry a class.
    :raises LoadError: the programs cannot be loaded.
    :raises BtfError: the kernel's BTF lacks a struct or member that the programs read.
    """

    def __init__(self, *, major: int, system_class: int, mark_mask: int) -> None:
        btf = Btf()
        self._loaded = load(
            ProgramSpec(
                source="classify.bpf.c",
                defines={
                    "MAJOR": major,
                    "CLASS_SYSTEM": system_class,
                    "MARK_MASK": mark_mask,
                    "MARK_SHIFT": (mark_mask & -mark_mask).bit_length() - 1,
                    "MAX_CGROUPS": _MAX_CGROUPS,
                    "MAX_LINKS": _MAX_LINKS,
                    "MAX_FLOWS": _MAX_FLOWS,
                    "OFF_SOCK_CGROUP": btf.offset("sock", "sk_cgrp_data.cgroup"),
                    **ancestor_offsets(btf),
                },
                maps=("class_of_cgroup", "class_of_link"),
                classifiers=PROGRAMS,
                typed=False,
            )
        )
        self._cgroups = _Assignments(self._loaded.map_fds["class_of_cgroup"], _MAX_CGROUPS)
        self._links = _Assignments(self._loaded.map_fds["class_of_link"], _MAX_LINKS)

    @property
    def program_fds(self) -> Mapping[str, int]:
        """The descriptors of ``PROGRAMS`` by name."""
        return self._loaded.program_fds

    def assign(self, *, cgroups: Mapping[int, int], links: Mapping[int, int]) -> None:
        """Set the classes of cgroups (by cgroup2 kernfs id) and of veths (by ifindex).

        These replace all former assignments. At most 4,096 of each kind are assigned.
        """
        self._cgroups.assign(cgroups)
        self._links.assign(links)

    def close(self) -> None:
        """Close the programs; those that filters use stay loaded."""
        self._loaded.close()


class _Assignments:
    """A BPF map from ids to classes, updated by differences."""

    def __init__(self, fd: int, size: int) -> None:
        self._map = HashMap(fd)
        self._size = size
        self._now: dict[int, int] = {}

    def assign(self, wanted: Mapping[int, int]) -> None:
        wanted = dict(list(wanted.items())[: self._size])
        for key in self._now.keys() - wanted.keys():
            self._map.delete(key)
        for key, number in wanted.items():
            if self._now.get(key) != number:
                self._map.set(key, number, 0)
        self._now = wanted


def trial() -> tuple[bool, str]:
    """Load the programs once and return (success, detail), for ``sweetpoint doctor``."""
    from controller.probes.bpf.btf import BtfError
    from controller.probes.bpf.loader import LoadError

    try:
        Classifier(major=1, system_class=1, mark_mask=0xF).close()
    except (BtfError, LoadError, OSError) as error:
        return False, str(error)
    return True, "the programs load"
