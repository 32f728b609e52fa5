# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sentences for errors of the operating system: what is wrong, and what to do about it."""

import errno
import os

__all__ = ("reason", "sentence")

_TEXTS = {
    errno.ENOENT: "there is no such file or directory",
    errno.ENOTDIR: "a part of this path is not a directory",
    errno.EISDIR: "this is a directory, not a file",
    errno.EACCES: "access is denied; run as root, or change its permissions",
    errno.EPERM: "this is not permitted; run as root",
    errno.ENOSPC: "no space is left on the device; free some",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.EIO: "the device reports a failure; see the kernel's log",
    errno.EMFILE: "this process has too many files open; try again",
    errno.ENFILE: "this host has too many files open; try again",
    errno.ENOMEM: "this host is short of memory; try again",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "this is a symbolic link, which is not followed",
    errno.EADDRINUSE: "another program uses this address; stop it, or choose another one",
    errno.ECONNREFUSED: "nothing listens at this address",
    errno.ECONNRESET: "the other side closed the connection; try again",
    errno.EHOSTUNREACH: "there is no way to this host",
    errno.ENETUNREACH: "there is no way to this network",
    errno.ETIMEDOUT: "there was no answer in time; try again",
    errno.EPIPE: "the reader has gone",
}


def sentence(error: Exception) -> str:
    """Return *error* as text without its number, with the name of its file if it has one."""
    filename = error.filename if isinstance(error, OSError) else None
    return reason(error) if filename is None else f"{os.fspath(filename)}: {reason(error)}"


def reason(error: Exception) -> str:
    """Return *error* as text without its number and file.

    The text of an error that the project made itself, or that is none of the operating system, is
    kept.
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    number, text = error.errno, error.strerror
    if number is None or text != os.strerror(number):  # made in this project
        return text
    return _TEXTS.get(number, text)
