# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Figures that services push: datagrams ``SERVICE NUMBER`` to a unix socket.

Datagrams need no connection, so no client can keep one open. With each datagram the kernel gives
the sender's user (SCM_CREDENTIALS, unix(7)); a process in a user namespace cannot claim a user
that is not its own. Users that are not configured cannot write, by an access control list of the
socket (acl(5)) where its file system has them. The rate is limited for all senders together: a
fast one delays other pushes, and nothing else.
"""

import asyncio
from collections.abc import Mapping
import errno
import grp
import logging
import os
from pathlib import Path
import pwd
import socket
import stat
import struct
import time

from controller.config.sections.service_sources import Push, ServiceLevelConfig
from controller.probes.service_level.ledger import Ledger, Reason, SourceError
from controller.probes.service_level.parse import number, printable

__all__ = ("PushSocket",)

_log = logging.getLogger(__name__)

_MAX_BYTES = 512
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
# Room for the credentials and nothing else: the kernel then closes attached descriptors instead
# of installing them in this process.
_ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS.size)
_PER_WINDOW = 64
_WINDOW_S = 0.1
_LOG_EVERY_S = 60.0


class PushSocket:
    """The socket. ``errors`` counts the datagrams that belong to no service, by reason.

    :param ledgers: by name, of the services that may push.
    :raises OSError: the socket cannot be created; the message names its path.
    """

    def __init__(self, config: ServiceLevelConfig, ledgers: Mapping[str, Ledger]) -> None:
        self._ledgers = ledgers
        self._users = {name: _users_of(ledger) for name, ledger in ledgers.items()}
        self.errors = dict.fromkeys(map(str, Reason), 0)
        self._window_s, self._left = 0.0, _PER_WINDOW
        self._logged_s: dict[Reason, float] = {}
        self._path = config.socket
        self._socket = _bind(config.socket, config.group, set().union(*self._users.values()))
        self._inode = config.socket.stat().st_ino

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive datagrams from now on, in *loop*."""
        self._loop = loop
        loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        """Remove the socket, unless its path is another file by now, and stop listening."""
        # Before the end: another process takes the path of a socket on which nobody listens, and
        # its new file may have the same inode number.
        try:
            if self._path.stat(follow_symlinks=False).st_ino == self._inode:
                self._path.unlink()
        except FileNotFoundError:
            pass
        self._socket.close()

    def _read(self) -> None:
        now_s = time.monotonic()
        if now_s - self._window_s >= _WINDOW_S:
            self._window_s, self._left = now_s, _PER_WINDOW
        while self._left:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    _MAX_BYTES, _ANCILLARY, socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return
            self._left -= 1
            try:
                self._accept(data, _sender(ancillary), truncated=bool(flags & socket.MSG_TRUNC))
            except SourceError as error:
                self._refuse(error)
        # Rate limit: further datagrams stay in the kernel's queue until the next window.
        self._loop.remove_reader(self._socket)
        self._loop.call_later(_WINDOW_S, self.start, self._loop)

    def _accept(self, data: bytes, uid: int | None, *, truncated: bool) -> None:
        if truncated:
            raise SourceError(Reason.TOO_BIG, f"a push of more than {_MAX_BYTES} bytes")
        try:
            service, space, figure = data.decode().removesuffix("\n").rpartition(" ")
        except UnicodeDecodeError:
            service, space, figure = "", "", ""
        if not space:
            raise SourceError(Reason.FORMAT, "a push must be: SERVICE NUMBER")
        ledger = self._ledgers.get(service)
        if ledger is None:
            text = f"a push for {printable(service)}, which is not a service that pushes"
            raise SourceError(Reason.UNKNOWN, text)
        if uid not in self._users[service]:
            raise SourceError(Reason.FORBIDDEN, f"a push for {service} by user {uid}")
        try:
            ledger.answered(number(figure), time.monotonic_ns())
        except SourceError as error:
            ledger.count(error.reason)
            self._log(SourceError(error.reason, f"a push for {service}: {error}"))

    def _refuse(self, error: SourceError) -> None:
        self.errors[error.reason] += 1
        self._log(error)

    def _log(self, error: SourceError) -> None:
        # Limited per reason, because any process that may write to the socket could fill the log.
        now_s = time.monotonic()
        if now_s - self._logged_s.get(error.reason, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged_s[error.reason] = now_s
            _log.warning("%s: %s (logged once a minute at most)", self._path, error)


def _users_of(ledger: Ledger) -> set[int]:
    source = ledger.source.source
    assert isinstance(source, Push)
    users: set[int] = set()
    for user in source.users:
        try:
            users.add(user if isinstance(user, int) else pwd.getpwnam(user).pw_uid)
        except KeyError:
            _log.warning("service level of %s: no user %s here", ledger.source.service, user)
    return users


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[1])
    return None


def _bind(path: Path, group: str | None, users: set[int]) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _remove_dead(path)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # Sending needs the right to write. bind(2) applies the umask, with which (022) only the
        # owner may write, so no other user can send before owner and mode are set.
        listener.bind(str(path))
        if group is not None:
            os.chown(path, -1, grp.getgrnam(group).gr_gid, follow_symlinks=False)
        path.chmod(0o660 if group else 0o600)
        if group is None and users - {0}:
            _admit(path, users)
    except (OSError, KeyError) as error:
        listener.close()
        text = error.strerror if isinstance(error, OSError) else f"no group {group} here"
        raise OSError(f"service level: {path}: {text}") from None
    return listener


_ACL_VERSION = struct.Struct("=I")
_ACL_ENTRY = struct.Struct("=HHI")  # linux/posix_acl_xattr.h: tag, permissions, id
_ACL_OWNER, _ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_OTHERS = 1, 2, 4, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_READ_WRITE = 6


def _admit(path: Path, users: set[int]) -> None:
    """Permit *users* alone to write: others could keep the queue full with pushes to refuse."""
    entries = [(_ACL_OWNER, _READ_WRITE, _NO_ID)]
    entries += [(_ACL_USER, _READ_WRITE, user) for user in sorted(users)]
    entries += [(_ACL_GROUP, 0, _NO_ID), (_ACL_MASK, _READ_WRITE, _NO_ID), (_ACL_OTHERS, 0, _NO_ID)]
    acl = _ACL_VERSION.pack(2) + b"".join(_ACL_ENTRY.pack(*each) for each in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", acl, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        _log.warning(
            "service level: %s: its file system has no access control lists, so every user may "
            "write to it, and can delay the pushes of others; set service_level.socket_group",
            path,
        )
        path.chmod(0o666)


def _remove_dead(path: Path) -> None:
    """Remove a socket that a killed agent left behind."""
    try:
        is_socket = stat.S_ISSOCK(path.stat(follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return
    if is_socket:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
