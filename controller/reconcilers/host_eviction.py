# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions on a host without Kubernetes: a workload is frozen for a while, or killed.

Both need ``eviction.standalone``, and act only on the cgroup of the workload itself.
Freezing is a knob like the others: it is journaled, and undone when the agent ends for any reason.
"""

from collections.abc import Container, Iterator
import errno
from pathlib import Path
from typing import NamedTuple

from actuators.base import GoneError, RefusedError
from actuators.executor import Executor
from actuators.freezer import (
    FREEZER,
    CgroupFreeze,
    check_spares_agent,
    freezers,
    is_inside,
    kill,
    processes,
)
from controller.config.sections.eviction import EvictionConfig, StandaloneAction
from controller.core.decision import Action, Eviction, Failure
from controller.core.model import (
    EvictionAnswer,
    EvictionResult,
    Knob,
    KnobValue,
    Target,
    TargetKind,
)
from controller.core.units import NS_PER_SEC, format_duration
from controller.host.facts import CgroupLayout

__all__ = ("HostEvictions",)

# An eviction that is only reported is reported again after this time.
_REPORT_NS = 600 * NS_PER_SEC
# A killed task needs a moment to end. A workload that forks faster than it is killed is given up.
_KILL_NS = 5 * NS_PER_SEC


class _Kill(NamedTuple):
    eviction: Eviction
    target: Target
    until_ns: int


class HostEvictions:
    """Carries out evictions; for the control thread alone.

    :param config: the section ``eviction``.
    :param layout: the hierarchy with the cgroups of the workloads.
    :param executor: writes the files of the freezer.
    """

    def __init__(self, config: EvictionConfig, layout: CgroupLayout, executor: Executor) -> None:
        self._config = config
        self._layout = layout
        self._executor = executor
        self._freezer = next(iter(freezers(layout)), None)
        self._thaw_ns: dict[Target, int] = {}
        self._kills: list[_Kill] = []
        self._answers: list[EvictionAnswer] = []
        self.reset()

    def request(self, eviction: Eviction, path: str, *, enforcing: bool, now_ns: int) -> None:
        """Begin *eviction* of the workload whose cgroup of the cpu controller is at *path*.

        The result is among the ``answers`` of this or a later tick.
        """
        action = self._config.standalone
        target = Target(TargetKind.CGROUP, *eviction.cgroup, path)
        if not enforcing or action is StandaloneAction.OFF:
            reason = "eviction.standalone is off" if enforcing else "the agent only observes"
            self._answer(eviction, EvictionResult.REPORTED, reason, _REPORT_NS)
        elif action is StandaloneAction.KILL:
            self._kills.append(_Kill(eviction, target, now_ns + _KILL_NS))
        else:
            self._freeze(eviction, target, now_ns)

    def reconcile(self, now_ns: int) -> None:
        """Continue kills that take longer than a tick, and thaw workloads whose time is over.

        A workload that the kernel refuses to thaw is tried again after the executor's back-off.
        """
        self._kills = [each for each in self._kills if not self._try_kill(each, now_ns)]
        for target in [each for each, due_ns in self._thaw_ns.items() if now_ns >= due_ns]:
            (outcome,) = self._executor.execute([_freezing(target, "1", "0")], now_ns=now_ns)
            if outcome.failure is Failure.REFUSED:
                self._thaw_ns[target] = outcome.retry_ns
            else:
                del self._thaw_ns[target]

    def spare(self, paths: Container[str]) -> None:
        """Thaw the workloads with the cgroups at *paths*, and kill no more of their processes."""
        self._kills = [each for each in self._kills if each.target.path not in paths]
        self._thaw_ns |= {each: 0 for each in self._thaw_ns if each.path in paths}

    def answers(self) -> Iterator[EvictionAnswer]:
        """Yield the results since the last call."""
        answers, self._answers = self._answers, []
        yield from answers

    def reset(self) -> None:
        """Forget all evictions in progress, because every knob was restored.

        A workload that could not be thawed then is still held, and is thawed as soon as possible.
        """
        held = () if self._freezer is None else self._executor.held()
        self._thaw_ns = {each: 0 for each in held if each.scope == FREEZER}
        self._kills.clear()

    def _answer(
        self, eviction: Eviction, result: EvictionResult, message: str, wait_ns: int = 0
    ) -> None:
        answer = EvictionAnswer(eviction.cgroup, eviction.channel, result, message, wait_ns)
        self._answers.append(answer)

    def _freeze(self, eviction: Eviction, target: Target, now_ns: int) -> None:
        if self._freezer is None:
            self._answer(eviction, EvictionResult.REFUSED, "this host has no freezer")
            return
        try:
            frozen = _frozen_cgroup(self._freezer, self._layout, target)
            value = self._freezer.read(frozen)
        except GoneError as error:
            self._answer(eviction, EvictionResult.GONE, str(error))
            return
        except RefusedError as error:
            self._answer(eviction, EvictionResult.REFUSED, str(error))
            return
        if value == "1":
            self._answer(eviction, EvictionResult.REFUSED, "another program has frozen it")
            return
        (outcome,) = self._executor.execute([_freezing(frozen, "0", "1")], now_ns=now_ns)
        if outcome.applied == "1" and outcome.failure is None and outcome.foreign is None:
            lasts_ns = self._config.freeze_ns
            self._thaw_ns[frozen] = now_ns + lasts_ns
            message = f"frozen for {format_duration(lasts_ns)}"
            self._answer(eviction, EvictionResult.FROZEN, message, lasts_ns)
        elif outcome.failure is Failure.GONE:
            self._answer(eviction, EvictionResult.GONE, outcome.message)
        else:
            self._answer(eviction, EvictionResult.REFUSED, outcome.message)

    def _try_kill(self, trial: _Kill, now_ns: int) -> bool:
        """Kill the processes that are left; return whether the eviction is over."""
        try:
            left = kill(self._layout, trial.target)
        except GoneError:
            left = 0
        except RefusedError as error:
            self._answer(trial.eviction, EvictionResult.REFUSED, str(error))
            return True
        if left and now_ns < trial.until_ns:
            return False
        if left:
            message = f"{left} of its processes did not end within {_KILL_NS // NS_PER_SEC} s"
            self._answer(trial.eviction, EvictionResult.REFUSED, message)
        else:
            self._answer(trial.eviction, EvictionResult.KILLED, "all its processes were killed")
        return True


def _freezing(target: Target, previous: str, value: str) -> Action:
    return Action(
        target=target,
        knob=Knob.FREEZE,
        previous=KnobValue(previous),
        value=KnobValue(value),
        reason="eviction" if value == "1" else "frozen long enough",
    )


def _frozen_cgroup(freezer: CgroupFreeze, layout: CgroupLayout, target: Target) -> Target:
    """Return the cgroup to freeze for the workload at *target*.

    On v2 it is the cgroup of the workload. On v1 it is the cgroup of the same path in the freezer
    hierarchy, provided that it holds the processes of the workload and no others.

    :raises GoneError: the workload is gone.
    :raises RefusedError: there is no such cgroup, or the agent itself is in it.
    """
    check_spares_agent(layout, target.path)
    if freezer.version == "v2":
        return target._replace(scope=FREEZER)
    path = target.path
    of_workload = processes(layout.mount, target)
    try:
        inode = (freezer.mount / path[1:]).stat().st_ino
        place = target._replace(scope=FREEZER, id=inode)
        of_freezer = processes(freezer.mount, place)
    except (FileNotFoundError, GoneError):
        of_freezer = []
    # The two lists were read one after the other, so a process that is only in one of them may be
    # new. Each process is therefore checked on its own.
    whole = of_freezer and all(is_inside(pid, FREEZER, path) or _ended(pid) for pid in of_workload)
    alone = all(is_inside(pid, layout.hierarchy, path) or _ended(pid) for pid in of_freezer)
    if not (whole and alone):
        text = f"{path}: the freezer hierarchy has no cgroup of that path with the same processes"
        raise RefusedError(errno.ENOENT, text)
    return place


def _ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()
