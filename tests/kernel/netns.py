# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Network namespaces of a test: made, linked, entered, and with processes in them."""

from collections.abc import Iterator, Sequence
import contextlib
import ctypes
import itertools
import os
from pathlib import Path
import subprocess

from tests.support.waiting import DEADLINE_S

__all__ = ("batch", "entered", "inside", "linked_pair", "namespaces", "process_in", "run")

_CLONE_NEWNET = 0x40000000
_numbers = itertools.count()


def run(*command: str, text: str = "") -> str:
    """Run a command with *text* as its input and return its output."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """Return the command line that runs *command* in a network namespace.

    Not with ``ip netns exec``, which mounts another /sys without the cgroups.

    :param namespace: its name in ``/run/netns``, or its path.
    """
    return ["nsenter", f"--net={Path('/run/netns', namespace)}", *command]


def batch(namespace: str, lines: Sequence[str]) -> None:
    """Run several commands of ip in a namespace."""
    run("ip", "-n", namespace, "-b", "-", text="\n".join(lines))


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[str]]:
    """Make *count* network namespaces and return their names."""
    names = [f"swt{os.getpid()}-{next(_numbers)}" for _ in range(count)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def linked_pair() -> Iterator[tuple[str, str]]:
    """Make two namespaces whose devices ``eth0`` are linked: 10.98.0.1 and 10.98.0.2.

    Only the packets of a test cross the link: there is no IPv6, and both know their neighbour.
    """
    with namespaces(2) as (one, other):
        for name in (one, other):
            run(*inside(name, ("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")))
        ends = [("address", f"02:00:00:00:00:0{number}") for number in (1, 2)]
        veth = ("link", "add", "eth0", *ends[0], "type", "veth")
        run("ip", "-n", one, *veth, "peer", "eth0", *ends[1], "netns", other)
        for name, here, there in ((one, 1, 2), (other, 2, 1)):
            lladdr = f"lladdr {ends[there - 1][1]} nud permanent"
            batch(
                name,
                [
                    f"addr add 10.98.0.{here}/24 dev eth0",
                    "link set eth0 up",
                    f"neigh add 10.98.0.{there} {lladdr} dev eth0",
                ],
            )
        yield one, other


@contextlib.contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Move this thread into a network namespace, and back at the end.

    :param namespace: its name in ``/run/netns``, or its path.
    """
    path = Path("/run/netns", namespace)
    with open("/proc/thread-self/ns/net") as before, path.open() as there:
        _setns(there.fileno())
        try:
            yield
        finally:
            _setns(before.fileno())


@contextlib.contextmanager
def process_in(namespace: str, cgroup: Path | None = None) -> Iterator[int]:
    """Run a process in a network namespace and in *cgroup*, and return its pid."""
    with entered(namespace):
        # It ends with this process, too, whose end closes the pipe.
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(process.pid))
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def _setns(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
