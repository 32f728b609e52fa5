# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps what the planner learned about services in the data directory."""

from collections.abc import Sequence
import json
import logging

from pydantic import TypeAdapter, ValidationError

from controller.core.learning.state import LearnedIndicator
from controller.core.units import NS_PER_SEC
from controller.host.store import Store

__all__ = ("LearnedStore",)

_log = logging.getLogger(__name__)

_NAME = "sweet_points"
_VERSION = 1
_EVERY_NS = 600 * NS_PER_SEC
# To write a megabyte as JSON takes 20 ms of a tick. It holds several hundred services.
_MAX_BYTES = 1 << 20
_FRAME_BYTES = 100
_RECORDS: TypeAdapter[tuple[LearnedIndicator, ...]] = TypeAdapter(tuple[LearnedIndicator, ...])


class LearnedStore:
    """The document with what was learned; ``first`` is its content at the start."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._due_ns: int | None = None
        self.first = self._read()

    def _read(self) -> tuple[LearnedIndicator, ...]:
        document = self._store.read(_NAME, _VERSION)
        if document is None:
            return ()
        try:
            return _RECORDS.validate_python(document.content)
        except ValidationError as error:
            reason = str(error).splitlines()[0]
            _log.warning("what was learned is lost, its file has another form: %s", reason)
            return ()

    def is_due(self, now_ns: int) -> bool:
        """Return whether the next ``write`` is due; the first is after ten minutes."""
        if self._due_ns is None:
            self._due_ns = now_ns + _EVERY_NS
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _EVERY_NS
        return True

    def write(self, learned: Sequence[LearnedIndicator]) -> None:
        """Write *learned*, or as much of its end as there is room for."""
        left = _MAX_BYTES - _FRAME_BYTES
        kept = []
        for each in reversed(learned):
            left -= len(json.dumps(each)) + len(", ")
            if left < 0:
                break
            kept.append(each)
        if kept:
            self._store.write(_NAME, _VERSION, kept[::-1])
