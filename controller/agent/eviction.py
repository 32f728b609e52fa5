# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Dispatch of evictions, and their history across restarts of the agent.

Pods are evicted through the API server, workloads named in the configuration file by the kernel
(freeze or kill). The history is a file below the state directory, so that an agent that crashes
again and again has one budget of evictions.

Times in the file are CLOCK_MONOTONIC, which no change of the date affects, together with the boot
id of the kernel. After a reboot the file is ignored.
"""

from collections.abc import Container, Iterable
import json
import logging
from pathlib import Path
import time
from typing import TYPE_CHECKING

from controller.core.decision import Plan
from controller.core.eviction.budget import EvictionHistory
from controller.core.model import EvictionAnswer, EvictionResult, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import boot_id
from controller.host.state_dir import write_json
from controller.page.words import explain_eviction
from controller.reconcilers.host_eviction import HostEvictions

if TYPE_CHECKING:
    from controller.kube.pod_eviction import PodEvictions

__all__ = (
    "EvictionDispatcher",
    "read_history",
    "write_history",
)

_log = logging.getLogger(__name__)

_FILE_NAME = "evictions.json"
# The configuration allows at most sixty evictions per hour.
_MAX_EVICTIONS = 60
_MAX_BYTES = 4096
# Upper bound of not_before_ns: an hour for a pod to stop, the time in which the effect is judged,
# a cool-down of a day, and a reserve.
_MAX_AHEAD_NS = 48 * 3600 * NS_PER_SEC


def read_history(state_dir: Path, now_ns: int) -> EvictionHistory:
    """Return the history that was written last since the kernel started.

    If the file cannot be read, the budgets may be used up: no eviction is allowed for an hour.

    :param now_ns: CLOCK_MONOTONIC.
    """
    path = state_dir / _FILE_NAME
    try:
        with path.open("rb") as file:
            return _parse(file.read(_MAX_BYTES + 1), now_ns)
    except FileNotFoundError:
        return EvictionHistory()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _log.error("%s is damaged (%s): no evictions for an hour", path, error)
        return EvictionHistory((now_ns,) * _MAX_EVICTIONS)


def write_history(state_dir: Path, history: EvictionHistory) -> None:
    """Write *history* to the state directory. Call it before the newest eviction in it starts.

    :raises OSError: the file cannot be written; the eviction must not take place.
    """
    write_json(state_dir / _FILE_NAME, {"boot_id": boot_id(), **history._asdict()})


def _parse(data: bytes, now_ns: int) -> EvictionHistory:
    if len(data) > _MAX_BYTES:
        raise ValueError("too large")
    fields = json.loads(data)
    if fields["boot_id"] != boot_id():
        return EvictionHistory()
    asked, not_before = fields["asked_ns"], fields["not_before_ns"]
    if not isinstance(asked, list) or any(type(each) is not int for each in (*asked, not_before)):
        raise TypeError("times must be integers")
    if asked != sorted(asked) or len(asked) > _MAX_EVICTIONS:
        raise ValueError("not sorted, or too many")
    if not all(0 <= each <= now_ns for each in asked) or not_before > now_ns + _MAX_AHEAD_NS:
        raise ValueError("a time in the future")
    return EvictionHistory(tuple(asked), not_before)


class EvictionDispatcher:
    """Passes the eviction of a plan to the API server or to the kernel. For the control thread.

    Processes of a pod are never frozen or killed here, even while the API server is unreachable.
    ``history`` is the input of a new planner; it is stored below *state_dir*.

    :param host: evictions by freezing or killing, for workloads of the configuration file.
    :param pods: evictions of pods; ``None`` on a host without Kubernetes.
    """

    def __init__(self, host: HostEvictions, pods: "PodEvictions | None", state_dir: Path) -> None:
        self._host = host
        self._pods = pods
        self._state_dir = state_dir
        self.history = read_history(state_dir, time.monotonic_ns())
        self._written = EvictionHistory()  # without evictions no file is written
        self._problem = ""
        self._held_answers: list[EvictionAnswer] = []

    def dispatch(
        self,
        plan: Plan,
        history: EvictionHistory,
        workloads: Iterable[Workload],
        *,
        enforcing: bool,
        now_ns: int,
    ) -> None:
        """Start the eviction of *plan*, if any, and continue those in progress.

        If *history* cannot be stored, the eviction is answered with HELD instead.

        :param history: all evictions up to and including this one.
        """
        self._store(history)
        eviction = plan.eviction
        if eviction is not None and self._problem:
            answer = EvictionResult.HELD, f"its record cannot be written: {self._problem}"
            self._held_answers.append(EvictionAnswer(eviction.cgroup, eviction.channel, *answer))
        elif eviction is not None:
            _log.warning("%s: to be evicted: %s", eviction.name, explain_eviction(eviction, plan))
            if self._pods is None or not self._pods.request(eviction, plan, enforcing=enforcing):
                path = next((w.path for w in workloads if w.cgroup == eviction.cgroup), "")
                self._host.request(eviction, path, enforcing=enforcing, now_ns=now_ns)
        self._host.reconcile(now_ns)

    def answers(self) -> tuple[EvictionAnswer, ...]:
        """Return the results that arrived since the last call."""
        pods = () if self._pods is None else self._pods.answers()
        held, self._held_answers = self._held_answers, []
        return (*held, *pods, *self._host.answers())

    def spare(self, paths: Container[str]) -> None:
        """Thaw the workloads with the cgroups at *paths*, and kill no more of their processes."""
        self._host.spare(paths)

    def reset(self) -> None:
        """Forget frozen workloads; call it after every knob was restored."""
        self._host.reset()

    def store_again(self) -> None:
        """Store the history again: its file is lost."""
        self._written = EvictionHistory()
        self._store(self.history)

    def _store(self, history: EvictionHistory) -> None:
        # Before the eviction starts: an agent that crashes during it must find it in the history.
        self.history = history
        if history == self._written:
            return
        try:
            write_history(self._state_dir, history)
        except OSError as error:
            if str(error) != self._problem:
                _log.error("%s: no evictions until this file can be written", error)
            self._problem = str(error)
        else:
            self._written, self._problem = history, ""
