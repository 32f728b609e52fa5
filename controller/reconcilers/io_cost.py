# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Enables iocost on disks that services and best-effort work share, so that io.weight counts.

A disk is enabled when a service with a use for weights and best-effort work have both sent requests
to it since their cgroups were made. It stays enabled while there are such services. One that
another program enabled, or that BFQ schedules, is left alone. So is one whose line another program
changed later, until the agent starts again.
"""

from collections.abc import Iterable
import contextlib
import logging
from pathlib import Path

from actuators.executor import Executor
from actuators.io_cost import COST_ON, cost_target
from controller.core.decision import Action
from controller.core.model import Channel, Knob, KnobValue, QosClass, Target, Workload
from controller.core.settings import Settings, io_class_of
from controller.core.units import NS_PER_SEC
from controller.host.disks import has_bfq
from controller.host.facts import CgroupLayout
from controller.probes.cgroup_usage import parse_io_requests

__all__ = ("IoCostReconciler",)

_log = logging.getLogger(__name__)

_ROUND_NS = 5 * NS_PER_SEC
# io.stat of so many cgroups is read in a tick.
_CGROUPS = 20
_ONLY = frozenset({Knob.IO_COST})


class IoCostReconciler:
    """Writes io.cost.qos of the root cgroup, through *executor*; in enforce mode only.

    ``left`` says by disk why it is left alone.

    :param layout: the hierarchy with the io controller.
    """

    def __init__(self, executor: Executor, layout: CgroupLayout) -> None:
        self._executor = executor
        self._mount = layout.mount
        self._settings: Settings | None = None
        self._workloads: tuple[Workload, ...] = ()
        self._services: tuple[Workload, ...] = ()
        self._queue: list[Workload] = []
        # The disks that services and best-effort work have used, of the round so far.
        self._used: dict[bool, set[str]] = {True: set(), False: set()}
        self._enabled: set[str] = set()
        self._ceded: set[str] = set()
        self._due_ns = 0
        self.left: dict[str, str] = {}

    def reconfigure(self, settings: Settings | None) -> None:
        """Take the profiles and the disks of *settings*; ``None``: enable none."""
        self._settings = settings
        self._select()

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the present workloads, paused ones as system workloads."""
        self._workloads = tuple(workloads)
        self._select()

    def reset(self) -> None:
        """Start over after everything of the agent was undone."""
        self._enabled.clear()
        self._due_ns = 0
        self._begin_round(())

    def reconcile(self, now_ns: int) -> None:
        """Read the use of disks, some cgroups at a time; decide after each round."""
        if not self._services:
            self._give_back(now_ns)
            return
        for _ in range(min(_CGROUPS, len(self._queue))):
            self._look(self._queue.pop())
        if self._queue or now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _ROUND_NS
        assert self._settings is not None
        disks = [each.device for each in self._settings.host.disks]
        if not self._enabled.issubset(disks):  # one was taken out of the configuration
            self._restore()
        for disk in disks:
            self._decide(disk, now_ns)
        best_effort = (each for each in self._workloads if each.qos is QosClass.BE)
        self._begin_round((*self._services, *best_effort))

    def _select(self) -> None:
        settings = self._settings
        self._services = (
            ()
            if settings is None
            else tuple(each for each in self._workloads if _uses_weights(each, settings))
        )

    def _begin_round(self, workloads: tuple[Workload, ...]) -> None:
        self._queue = list(workloads)
        self._used = {True: set(), False: set()}

    def _look(self, workload: Workload) -> None:
        path = Path(f"{self._mount}{workload.path}/io.stat")
        with contextlib.suppress(OSError):  # it ended, or has no io controller
            found = parse_io_requests(path.read_bytes())
            self._used[workload.qos is QosClass.BE].update(each.disk for each in found)

    def _decide(self, disk: str, now_ns: int) -> None:
        target = cost_target(disk)
        readings = self._executor.read([target], _ONLY)
        if not readings or disk in self._ceded:
            return
        held = self._executor.holds(target.place, Knob.IO_COST)
        if held:
            self._enabled.add(disk)
        elif disk in self._enabled:  # the executor has logged it
            self._enabled.discard(disk)
            self._ceded.add(disk)
            self.left[disk] = f"another program set '{readings[0].value}'"
        elif readings[0].value.startswith("enable=1"):
            self._leave(disk, "another program enabled it")
        elif has_bfq(disk):
            self._leave(disk, "the scheduler BFQ has weights of its own")
        elif disk in self._used[True] & self._used[False]:
            self._enable(target, readings[0].value, now_ns)

    def _enable(self, target: Target, previous: KnobValue, now_ns: int) -> None:
        action = Action(
            target=target,
            knob=Knob.IO_COST,
            previous=previous,
            value=COST_ON,
            reason="services and best-effort work share the disk",
        )
        (outcome,) = self._executor.execute([action], now_ns=now_ns)
        if outcome.failure is not None or outcome.foreign is not None:
            self._leave(target.path, outcome.message)
            return
        self._enabled.add(target.path)
        self.left.pop(target.path, None)
        _log.info("io.cost.qos: disk %s follows io.weight now: %s", target.path, action.reason)

    def _leave(self, disk: str, reason: str) -> None:
        """Note why *disk* is left alone, and log it if the reason is another one than before."""
        if self.left.get(disk) != reason:
            self.left[disk] = reason
            _log.warning("io.cost.qos: disk %s is left alone: %s", disk, reason)

    def _give_back(self, now_ns: int) -> None:
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _ROUND_NS
        self._restore()

    def _restore(self) -> None:
        self._enabled.clear()
        if self._executor.holds_any(_ONLY):
            for result in self._executor.restore_all(_ONLY).results:
                _log.info("%s: %s: %s", result.subject, result.result, result.message)


def _uses_weights(workload: Workload, settings: Settings) -> bool:
    """Return whether the loop moves weights for *workload*, or its class gives it one."""
    if workload.qos is QosClass.BE:
        return False
    given = settings.io_classes.get(io_class_of(workload, settings.profiles))
    if given is not None and given.weight is not None:
        return True
    profile = settings.profiles.get(workload.profile)
    return (
        workload.qos is QosClass.LS
        and profile is not None
        and any(each.channel is Channel.IO for each in profile.indicators)
    )
