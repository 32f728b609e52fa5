# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of ``bpf/classify.bpf.c``, and who belongs to which class.

They are loaded here and put to use by the actuators of traffic control. The filters keep the
programs and their maps: after a crash packets go on being classified as they were until
somebody removes the filters.
"""

from collections.abc import Mapping

from controller.probes.bpf.btf import Btf
from controller.probes.bpf.libbpf import HashMap
from controller.probes.bpf.loader import ProgramSpec, load

__all__ = ("PROGRAMS", "Classifier", "trial")

PROGRAMS = ("egress", "ingress", "redirect", "mark", "learn")
_MAX_CGROUPS = 4096
_MAX_LINKS = 4096
# 7 MiB; the least recently used are forgotten, and learned again with their next packet out.
_MAX_FLOWS = 65536


class Classifier:
    """The loaded programs.

    :param major: of the HTB whose classes the programs name.
    :param system_class: the class of everybody who has no other.
    :param mark_mask: the contiguous bits of skb->mark that carry a class.
    :raises LoadError: they cannot be loaded.
    :raises BtfError: this kernel does not describe what they need.
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
                    "OFF_CGROUP_KN": btf.offset("cgroup", "kn"),
                    "OFF_CGROUP_PARENT": btf.offset("cgroup", "self.parent"),
                    "OFF_CSS_CGROUP": btf.offset("cgroup_subsys_state", "cgroup"),
                    "OFF_KERNFS_ID": btf.offset("kernfs_node", "id"),
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
        """Put cgroups (cgroup2 kernfs ids) and veths (ifindexes) into classes, and nobody else.

        What is beyond 4,096 of a kind stays without a class.
        """
        self._cgroups.assign(cgroups)
        self._links.assign(links)

    def close(self) -> None:
        """Give the programs up; those that filters use stay loaded."""
        self._loaded.close()


class _Assignments:
    """A map from ids to classes, brought in line by differences."""

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
    """Load the programs once: (whether that works, what to tell); for ``sweetpoint doctor``."""
    from controller.probes.bpf.btf import BtfError
    from controller.probes.bpf.loader import LoadError

    try:
        Classifier(major=1, system_class=1, mark_mask=0xF).close()
    except (BtfError, LoadError, OSError) as error:
        return False, str(error)
    return True, "the programs load"
