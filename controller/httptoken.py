# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The bearer token that some pages want, from a file that may change while we run.

A Secret that is mounted into a pod is renewed in place, so a change counts from the next request
on. As long as the file has no token in it nobody gets in.
"""

import hmac
import logging
import os
from pathlib import Path
import re
import stat

__all__ = ("TokenError", "TokenFile")

_log = logging.getLogger(__name__)

_LONGEST = 4096
# RFC 6750, section 2.1. Shorter ones can be guessed.
_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,}=*")
_PREFIX = re.compile(r"bearer +", re.IGNORECASE)


class TokenError(Exception):
    """The file has no token; the message does not quote it."""


class TokenFile:
    """Compares what clients bring with what is in *path* at that moment; thread-safe.

    :raises TokenError: there is no token in it now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problem = ""
        self._read()

    def admits(self, authorization: str) -> bool:
        """Return whether the value of a request's Authorization header has the token.

        :raises TokenError: there is none in the file now.
        """
        try:
            token = self._read()
        except TokenError as error:
            if str(error) != self._problem:
                _log.error("%s", error)
            self._problem = str(error)
            raise
        self._problem = ""
        prefix = _PREFIX.match(authorization)
        given = authorization[prefix.end() :] if prefix else ""
        # What is not Latin-1 cannot have come in a header, and is no token anyway.
        return hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)

    def _read(self) -> bytes:
        try:
            # Without O_NONBLOCK opening a FIFO would wait for a writer.
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise TokenError(f"http_token_file: {self._path}: not a regular file")
                text = file.read(_LONGEST + 1).strip()
        except OSError as error:
            raise TokenError(f"http_token_file: {self._path}: {error.strerror}") from None
        if len(text) > _LONGEST or not _TOKEN.fullmatch(text):
            raise TokenError(
                f"http_token_file: {self._path}: must hold one token of at least 16 characters: "
                "letters, digits and ._~+/-"
            )
        return text
