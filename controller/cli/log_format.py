# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The forms of a line of the log: text for people, JSON for programs."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
import json
import logging

from controller.host.names import printable

__all__ = ("FORMATTERS", "TEXT")

TEXT = "text"


class _Text(logging.Formatter):
    """Shows names in messages as text: that of a cgroup may have sequences for the terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().formatMessage(record).split("\n")))


class _Json(logging.Formatter):
    """An object in each line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, and
    ``exception`` where there is a traceback. Other than ASCII is escaped.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


FORMATTERS: Mapping[str, Callable[[], logging.Formatter]] = {TEXT: _Text, "json": _Json}
