# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who carries an eviction out: the API server for pods, the kernel for what the file names.

What is kept of evictions across restarts: an agent that crashes again and again has one budget.

The times are CLOCK_MONOTONIC, which goes on as long as the kernel runs, whoever sets the date;
the kernel's boot id is beside them, and with another one they mean nothing.
"""

from collections.abc import Iterable
import json
import logging
from pathlib import Path
import time

from controller.core.control.eviction_policy import EvictionHistory
from controller.core.control.explain import explain_eviction
from controller.core.decision import Plan
from controller.core.model import EvictionAnswer, EvictionResult, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import boot_id
from controller.host.state_dir import write_json
from controller.kube.pod_eviction import PodEvictions
from controller.reconcilers.host_eviction import HostEvictions

__all__ = (
    "EvictionDispatcher",
    "read_history",
    "write_history",
)

_NAME = "evictions.json"
# More than sixty evictions in an hour nobody can ask for.
_MOST = 60
_LARGEST_BYTES = 4096
# A pod's hour to stop, the time to see the effect, a day's cool-down; with room to spare.
_LONGEST_NS = 48 * 3600 * NS_PER_SEC
_HOUR_NS = 3600 * NS_PER_SEC


def read_history(state_dir: Path, now_ns: int) -> EvictionHistory:
    """Return what was written last since this kernel started.

    If that cannot be read, all budgets may have been used up: nobody is evicted for an hour.
    """
    path = state_dir / _NAME
    try:
        with path.open("rb") as file:
            return _parse(file.read(_LARGEST_BYTES + 1), now_ns)
    except FileNotFoundError:
        return EvictionHistory()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _log.error("%s is damaged (%s): nobody is evicted for an hour", path, error)
        return EvictionHistory(not_before_ns=now_ns + _HOUR_NS)


def write_history(state_dir: Path, past: EvictionHistory) -> None:
    """Write *past* down; call it before what it tells of is done.

    :raises OSError: it cannot be written; then nobody must be evicted either.
    """
    write_json(state_dir / _NAME, {"boot_id": boot_id(), **past._asdict()})


def _parse(data: bytes, now_ns: int) -> EvictionHistory:
    if len(data) > _LARGEST_BYTES:
        raise ValueError("too large")
    fields = json.loads(data)
    if fields["boot_id"] != boot_id():
        return EvictionHistory()
    asked, not_before = fields["asked_ns"], fields["not_before_ns"]
    if not isinstance(asked, list) or any(type(each) is not int for each in (*asked, not_before)):
        raise TypeError("not times")
    if asked != sorted(asked) or len(asked) > _MOST:
        raise ValueError("no such evictions")
    if not all(0 <= each <= now_ns for each in asked) or not_before > now_ns + _LONGEST_NS:
        raise ValueError("a time that is still to come")
    return EvictionHistory(tuple(asked), not_before)


_log = logging.getLogger(__name__)


class EvictionDispatcher:
    """For the control thread. A pod is never touched here, however long its server is away.

    ``past`` is what a planner has to know of those before; it is kept below *state_dir*.

    :param pods: ``None`` on a host without Kubernetes.
    """

    def __init__(
        self, standalone: HostEvictions, pods: PodEvictions | None, state_dir: Path
    ) -> None:
        self._standalone = standalone
        self._pods = pods
        self._state_dir = state_dir
        self.history = read_history(state_dir, time.monotonic_ns())
        self._written = EvictionHistory()  # or nothing
        self._problem = ""
        self._held: list[EvictionAnswer] = []

    def dispatch(
        self,
        plan: Plan,
        past: EvictionHistory,
        workloads: Iterable[Workload],
        *,
        enforcing: bool,
        now_ns: int,
    ) -> None:
        """Begin the eviction that *plan* holds, if any; go on with those under way.

        *past* is what there is to know of evictions with this one.
        """
        self._store(past)
        eviction = plan.eviction
        if eviction is not None and self._problem:
            answer = EvictionResult.HELD, f"it cannot be written down: {self._problem}"
            self._held.append(EvictionAnswer(eviction.cgroup, eviction.channel, *answer))
        elif eviction is not None:
            _log.warning("%s: to be evicted: %s", eviction.name, explain_eviction(eviction, plan))
            if self._pods is None or not self._pods.request(eviction, plan, enforcing=enforcing):
                path = next((w.path for w in workloads if w.cgroup == eviction.cgroup), "")
                self._standalone.request(eviction, path, enforcing=enforcing, now_ns=now_ns)
        self._standalone.reconcile(now_ns)

    def answers(self) -> tuple[EvictionAnswer, ...]:
        """Return the answers that came since the last call."""
        pods = () if self._pods is None else self._pods.answers()
        held, self._held = self._held, []
        return (*held, *pods, *self._standalone.answers())

    def reset(self) -> None:
        """Begin anew: every knob was restored."""
        self._standalone.reset()

    def _store(self, past: EvictionHistory) -> None:
        # Before anybody is asked to go: an agent that dies of it must not begin anew.
        self.history = past
        if past == self._written:
            return
        try:
            write_history(self._state_dir, past)
        except OSError as error:
            if str(error) != self._problem:
                _log.error("%s: nobody is evicted until that works", error)
            self._problem = str(error)
        else:
            self._written, self._problem = past, ""
