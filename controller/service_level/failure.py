# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Why a source gave no figure."""

from enum import StrEnum

__all__ = ("Reason", "SourceError")


class Reason(StrEnum):
    """The kinds that are counted apart."""

    CONNECT = "connect"  # no such host, nobody listens, the connection broke
    TLS = "tls"
    TIMEOUT = "timeout"
    STATUS = "status"  # an HTTP status other than 200
    REDIRECT = "redirect"  # never followed: it could lead anywhere
    TOO_BIG = "too-big"
    FORMAT = "format"  # not what was expected, or not a number
    EMPTY = "empty"  # no such series or field
    AMBIGUOUS = "ambiguous"  # more than one
    SECRET = "secret"  # noqa: S105 - a token or header file cannot be read
    FORBIDDEN = "forbidden"  # a push by somebody who may not
    UNKNOWN = "unknown"  # a push for a service that does not push
    INTERNAL = "internal"  # a bug of ours


class SourceError(Exception):
    """A source gave no figure; the message says why, in one line."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
