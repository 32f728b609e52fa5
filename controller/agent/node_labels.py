# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The labels of the Node that policies select by, kept in the state directory.

An agent that starts while the API server is away goes on with the labels that the one before it
had. So a restart does not change which policies are in force.
"""

from collections.abc import Mapping
from enum import StrEnum
import json
import logging
from pathlib import Path

from controller.config.rollout_reach import with_kept_reaches
from controller.host.state_dir import read_file, write_json

__all__ = ("LabelOrigin", "NodeLabels")

_log = logging.getLogger(__name__)

_NAME = "node-labels.json"
_MAX_BYTES = 1 << 20


class LabelOrigin(StrEnum):
    """Where the labels come from: the API server, an earlier agent, or nowhere yet."""

    READ = "read"
    KEPT = "kept"
    UNKNOWN = "unknown"


class NodeLabels:
    """The labels now in ``labels``, ``None`` if they are not known. For the control thread.

    Without *state_dir* nothing is kept.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self._path = None if state_dir is None else state_dir / _NAME
        self.labels = None if self._path is None else _read(self._path)
        self.origin = LabelOrigin.UNKNOWN if self.labels is None else LabelOrigin.KEPT

    def take(self, labels: Mapping[str, str] | None, *, with_reaches: bool = True) -> None:
        """Take what was read last; ``None``: nothing was read yet.

        A change is stored. If that fails it is logged, and a restart may begin with older labels.
        Not *with_reaches*: those of policies could not be read, and the kept ones stay.
        """
        if labels is not None and not with_reaches:
            labels = with_kept_reaches(labels, self.labels or {})
        if labels is None or (labels == self.labels and self.origin is LabelOrigin.READ):
            return
        changed = labels != self.labels
        self.labels, self.origin = labels, LabelOrigin.READ
        if changed:
            self.store()

    def store(self) -> None:
        """Store the labels that are known, as after a loss of the state directory."""
        if self._path is None or self.labels is None:
            return
        try:
            write_json(self._path, dict(self.labels))
        except OSError as error:
            _log.warning("%s: a restart without the API server has older labels", error)


def _read(path: Path) -> Mapping[str, str] | None:
    """Return the labels that an earlier agent stored; ``None`` from a damaged file."""
    try:
        found = json.loads(read_file(path, at_most=_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        return None
    return found
