# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPUs that kubelet's static CPU manager gave to one pod alone.

kubelet keeps them in ``cpu_manager_state`` (pkg/kubelet/cm/cpumanager/state, ``checkpoint.go``):
``policyName``, ``defaultCpuSet`` with the CPUs that pods share, and ``entries``, from the uid of a
pod and the name of a container to a cpulist. It replaces the file at each change. The cpusets of
containers alone do not show what is exclusive: kubelet narrows those of others later, every 10 s.
"""

import json
import logging
import os
from pathlib import Path
import re
import stat
import time

from controller.core.knob_values import format_cpuset
from controller.core.units import NS_PER_SEC, parse_cpu_list
from controller.host.facts import online_cpus

__all__ = ("KUBELET_STATE", "SharedCpus", "exclusive_cpus", "read_state")

# Of the host: the agent shares its PIDs, not its files.
KUBELET_STATE = Path("/proc/1/root/var/lib/kubelet/cpu_manager_state")

_log = logging.getLogger(__name__)

_POLL_NS = 2 * NS_PER_SEC
_MAX_BYTES = 1 << 20
_MAX_RANGES = 4096
# No number is so large that a range of it would fill the memory.
_RANGE = r"[0-9]{1,4}(?:-[0-9]{1,4})?"
_CPU_LIST = re.compile(rf"(?:{_RANGE}(?:,{_RANGE})*)?")


def exclusive_cpus(text: str) -> frozenset[int]:
    """Return the exclusive CPUs in a text of ``cpu_manager_state``; none with another policy.

    :raises ValueError: the text does not have the form of kubelet.
    """
    try:
        found = json.loads(text)
        if found["policyName"] != "static":
            return frozenset()
        entries = (found.get("entries") or {}).values()
        lists = [cpus for containers in entries for cpus in containers.values() if cpus != ""]
        return _parse(",".join(lists)) - _parse(found["defaultCpuSet"])
    except (AttributeError, KeyError, RecursionError, TypeError):
        raise ValueError("it does not have the form of kubelet") from None


def _parse(text: str) -> frozenset[int]:
    if text.count(",") > _MAX_RANGES or not _CPU_LIST.fullmatch(text):
        raise ValueError("a set of CPUs is not a list such as 0-3,8")
    return frozenset(parse_cpu_list(text))


def read_state(path: Path = KUBELET_STATE) -> frozenset[int]:
    """Return the exclusive CPUs by the file of kubelet; none where it does not exist.

    :raises ValueError: it does not have the form of kubelet.
    :raises OSError: it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("no regular file")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError("too long")
    return exclusive_cpus(data.decode("utf-8"))


class SharedCpus:
    """Follows the file of kubelet; looks every 2 s whether it changed."""

    def __init__(self, path: Path = KUBELET_STATE) -> None:
        self._path = path
        self._due_ns = 0
        self._seen: tuple[int, ...] | None = None
        self._exclusive: frozenset[int] = frozenset()
        self._problem = ""
        self._shared = ""

    def poll(self) -> str:
        """Return the CPUs that are online and not exclusive, as a cpulist.

        Empty: there are no exclusive CPUs, no others, or the file is not usable, which is logged.
        """
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _POLL_NS
            self._look()
        return self._shared

    def _look(self) -> None:
        problem = self._problem
        try:
            if (seen := self._stamp()) != self._seen:
                problem, self._exclusive, self._seen = "", frozenset(), seen
                self._exclusive = read_state(self._path)
            shared = frozenset(online_cpus()) - self._exclusive if self._exclusive else frozenset()
            if self._exclusive and not shared:
                problem = "all CPUs are exclusive"
        except OSError as error:
            shared, problem, self._seen = frozenset(), str(error.strerror), None
        except ValueError as error:
            # A UnicodeDecodeError has the whole content in its text.
            wrong_text = isinstance(error, UnicodeDecodeError)
            shared, problem = frozenset(), "no UTF-8" if wrong_text else str(error)[:200]
        if problem != self._problem and problem:
            _log.warning("%s: %s: best-effort work may use all CPUs", self._path, problem)
        self._problem, self._shared = problem, str(format_cpuset(shared))

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = self._path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size
