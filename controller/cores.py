# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Core scheduling for the node: whether it is there, who carries a cookie, who shares a core."""

from collections.abc import Iterable

from actuators.core_cookie import CoreCookie
from controller.cookie_keeper import CookieKeeper
from controller.host import CgroupLayout, core_siblings
from controller.model import QosClass, Target, Workload
from controller.probes.members import Moves
from controller.probes.overlap import OverlapMeter
from controller.probes.sched import MAX_SLOTS, SchedProbe
from controller.report import CoreState
from controller.settings import CoreMode, CoreSettings
from controller.workloads.idle import without_effect

__all__ = ("Cores",)


class Cores:
    """The cookies of best-effort work and the measure that they are gated by.

    :param probe: tells who runs where; without it nothing is known of shared cores.
    """

    def __init__(
        self, layout: CgroupLayout, actuator: CoreCookie, probe: SchedProbe | None
    ) -> None:
        self._probe = probe
        self._actuator = actuator
        self._keeper = CookieKeeper(layout, actuator)
        self._meter: OverlapMeter | None = None
        self._overlap: float | None = None
        self._workloads: tuple[Workload, ...] = ()
        self._idle_partial: tuple[str, ...] = ()
        self.problem = actuator.supported() or ""

    @property
    def targets(self) -> tuple[Target, ...]:
        """The groups that may get a cookie; none where there is no core scheduling."""
        return () if self.problem else self._keeper.targets

    @property
    def engaged(self) -> bool:
        """Whether some group is to carry a cookie now."""
        return bool(self._actuator.book.groups)

    @property
    def state(self) -> CoreState:
        """What there is to tell of it now."""
        return self._keeper.state._replace(
            problem=self.problem, overlap_ratio=self._overlap, idle_partial=self._idle_partial
        )

    def configure(self, settings: CoreSettings) -> None:
        """Measure from now on if *settings* want it, and only then."""
        wanted = settings.mode is CoreMode.AUTO and not self.problem
        siblings = core_siblings() if wanted else ()
        if siblings and self._meter is None and self._probe is not None:
            self._meter = OverlapMeter(self._probe.running, siblings, max_slots=MAX_SLOTS)
            self.follow(self._workloads)
        elif not wanted:
            self._stop_measuring()

    def follow(self, workloads: Iterable[Workload]) -> None:
        """Take the workloads that are here now; the sched probe must know them already."""
        self._workloads = tuple(workloads)
        self._idle_partial = without_effect(self._workloads)
        self._keeper.follow(self._workloads)
        if self._meter is None or self._probe is None:
            return
        by_class = {
            qos: self._probe.slots_of(w.cgroup for w in self._workloads if w.qos is qos)
            for qos in (QosClass.LS, QosClass.BE)
        }
        self._meter.follow(by_class[QosClass.LS], by_class[QosClass.BE])

    def overlap(self, now_ns: int) -> float | None:
        """Return ``Snapshot.core_overlap_ratio``."""
        self._overlap = None if self._meter is None else self._meter.read(now_ns)
        return self._overlap

    def tick(self, now_ns: int, moves: Moves | None) -> None:
        """Look after the cookies; only where knobs are written."""
        if not self.problem:
            self._keeper.tick(now_ns, moves)

    def close(self) -> None:
        """Stop measuring and end a helper that is at work."""
        self._stop_measuring()
        self._keeper.close()

    def _stop_measuring(self) -> None:
        if self._meter is not None:
            self._meter.close()
            self._meter = None
