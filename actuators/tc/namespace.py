# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Network namespaces: which one we are in, and how to get into another."""

import contextlib
from pathlib import Path

__all__ = ("network_namespace", "way_into")


def network_namespace() -> str:
    """Return the identity of this thread's network namespace: its inode number."""
    return str(Path("/proc/thread-self/ns/net").stat().st_ino)


def way_into(namespace: str) -> str | None:
    """Return a file by which a network namespace can be entered; ``None``: it is gone."""
    named = Path("/run/netns").glob("*")
    for path in (*named, *Path("/proc").glob("[0-9]*/ns/net")):
        with contextlib.suppress(OSError):
            if str(path.stat().st_ino) == namespace:
                return str(path)
    return None
