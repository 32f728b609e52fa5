# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sockets of a test in other network namespaces and cgroups."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import socket

from controller.host.facts import find_cgroup_layout
from tests.kernel.netns import entered
from tests.support.waiting import DEADLINE_S

__all__ = ("BYTES", "FRAME_BYTES", "exchange", "port", "socket_in")

BYTES = 1400  # of a datagram
FRAME_BYTES = BYTES + 14 + 20 + 8  # Ethernet, IPv4, UDP


@contextlib.contextmanager
def _joined(cgroup: Path) -> Iterator[None]:
    """Move this process into a cgroup2 directory, and back at the end."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    (before,) = (line.removeprefix("0::") for line in lines if line.startswith("0::"))
    root = find_cgroup_layout().unified
    (cgroup / "cgroup.procs").write_text("0")
    try:
        yield
    finally:
        Path(f"{root}{before}", "cgroup.procs").write_text("0")


@contextlib.contextmanager
def socket_in(
    namespace: str,
    cgroup: Path | None = None,
    *,
    kind: int = socket.SOCK_DGRAM,
    v6: bool = False,
    port: int = 0,
) -> Iterator[socket.socket]:
    """Make a socket in a network namespace and a cgroup, bound to *port* or to a free one."""
    family = socket.AF_INET6 if v6 else socket.AF_INET
    # A socket belongs to the cgroup of its process at its creation.
    with entered(namespace), contextlib.nullcontext() if cgroup is None else _joined(cgroup):
        made = socket.socket(family, kind)
    with made:
        made.settimeout(DEADLINE_S)
        # As large as the kernel allows, because packets that wait in a class are the sender's.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        made.bind(("::" if v6 else "0.0.0.0", port))
        yield made


def port(bound: socket.socket) -> int:
    """Return the port of a socket."""
    return int(bound.getsockname()[1])


def exchange(client: socket.socket, server: socket.socket, address: str) -> tuple[str, int]:
    """Send a datagram to *server* at *address*, and one back.

    :return: the client's address and port as the server sees them.
    """
    client.sendto(bytes(BYTES), (address, port(server)))
    _, sender = server.recvfrom(2 * BYTES)
    server.sendto(bytes(BYTES), sender)
    client.recv(2 * BYTES)
    return sender[0], sender[1]
