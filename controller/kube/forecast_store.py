# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the forecasts of the node's use in the data directory.

The document has about 100 kB, and at most 500 kB if each hour of the week had each use. It is made
once an hour, which takes 3 ms of a tick, and written by the thread of the store.
"""

from collections.abc import Mapping
import logging

from pydantic import TypeAdapter, ValidationError

from controller.host.store import Store
from controller.kube.capacity import ForecastRecord

__all__ = ("ForecastStore",)

_log = logging.getLogger(__name__)

_NAME = "forecast"
_VERSION = 1
_RECORDS: TypeAdapter[dict[str, ForecastRecord]] = TypeAdapter(dict[str, ForecastRecord])


class ForecastStore:
    """The document with the record of each resource, such as cpu."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self) -> Mapping[str, ForecastRecord]:
        """Return the records by resource; empty if there are none that can be used."""
        document = self._store.read(_NAME, _VERSION)
        if document is None:
            return {}
        try:
            records = _RECORDS.validate_python(document.content)
        except ValidationError as error:
            reason = str(error).splitlines()[0]
        else:
            if all(each.is_sane for each in records.values()):
                return records
            reason = "a number is out of range"
        _log.warning("the forecast starts anew, its file has another form: %s", reason)
        return {}

    def write(self, records: Mapping[str, ForecastRecord]) -> None:
        """Replace the document soon."""
        self._store.write(_NAME, _VERSION, dict(records))
