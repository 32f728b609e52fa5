# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a link is, as its driver says."""

import array
import fcntl
import socket
import struct

__all__ = ("link_speed",)

_SIOCETHTOOL, _ETHTOOL_GSET = 0x8946, 1  # include/uapi/linux/sockios.h, ethtool.h
_BYTES_PER_S = 125_000  # of one Mbit/s
_UNKNOWN = (0, 0xFFFF, 0xFFFFFFFF)


def link_speed(name: str) -> int | None:
    """Return the speed in bytes per second; ``None`` where the driver does not know it."""
    # struct ethtool_cmd, 44 bytes: the halves of the speed in Mbit/s are at 12 and 28.
    command = array.array("B", struct.pack("=I40x", _ETHTOOL_GSET))
    request = struct.pack("16sP16x", name.encode(), command.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inet:
        try:
            fcntl.ioctl(inet, _SIOCETHTOOL, request)
        except OSError:
            return None
    (low,), (high,) = struct.unpack_from("=H", command, 12), struct.unpack_from("=H", command, 28)
    mbit = high << 16 | low
    return None if mbit in _UNKNOWN else mbit * _BYTES_PER_S
