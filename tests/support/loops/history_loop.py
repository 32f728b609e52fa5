# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A closed loop over a simulated node that writes a history, in simulated time."""

from pathlib import Path

from controller.agent.history.files import DIRECTORY, HistoryFiles, Tick
from controller.agent.history.records import MOMENTS, Line, Moment, decode
from controller.config.sections.agent import HistoryConfig
from controller.core.decision import Action, Plan
from controller.core.planner import Planner
from controller.core.settings import Settings
from controller.host.ring import RingReader
from tests.support.loops.closed_loop import TICKS_PER_S, ClosedLoop, NodeT

# 2020-01-01T00:00:00Z
EPOCH_NS = 1_577_836_800 * 10**9
CONFIG = HistoryConfig(enabled=True, max_bytes=64 << 20, interval_ns=2 * 10**9)


class RecordedLoop(ClosedLoop[NodeT]):
    """Runs of an agent on *node*, whose history lies in *data_dir*.

    Time starts at ``EPOCH_NS`` and goes on over the runs.
    """

    def __init__(
        self,
        node: NodeT,
        settings: Settings,
        data_dir: Path,
        config: HistoryConfig = CONFIG,
    ) -> None:
        self.data_dir = data_dir
        self.anew = False
        self._config = config
        super().__init__(node, settings)

    def start(self) -> None:
        """Start an agent; the one before was killed, unless ``stop`` was called."""
        super().start()
        self.files = HistoryFiles(self.data_dir, self._config, lambda time_ns: EPOCH_NS + time_ns)
        # The CPU time of this process would thin the records: time runs faster than in an agent.
        for ring in (self.files.moments, self.files.snapshots):
            vars(ring)["charge"] = lambda now_ns, cost_s: None
        self.workloads = self.node.workloads

    def abandon(self) -> None:
        """Restore every knob and start with a new planner, as after an error in a tick."""
        held = self.planner.settle(self.outcomes).knobs
        self.node.execute(
            Action(
                target=each.target,
                knob=each.knob,
                previous=each.value,
                value=each.original,
                reason="restored",
            )
            for each in held
        )
        self.outcomes = ()
        self.planner = Planner(self.settings, self.workloads)
        self.anew = True

    def stop(self) -> None:
        self.files.close(self.latest, self.now_ns)

    def step(self) -> Plan:
        if self.node.workloads != self.workloads:
            self.workloads = self.node.workloads
            self.planner.set_workloads(self.workloads)
        plan = super().step()
        assert self.latest is not None
        self.files.add(
            Tick(
                self.latest,
                plan,
                self.outcomes,
                self.planner.settle(self.outcomes),
                self.workloads,
                self.settings,
                self.anew,
            )
        )
        self.anew = False
        if self.tick % TICKS_PER_S == 1:
            self.files.write(self.latest)
        return plan


def read_lines(data_dir: Path, stream: str = MOMENTS) -> list[Line | str]:
    return list(decode(RingReader(data_dir / DIRECTORY, stream).lines()))


def records(data_dir: Path, stream: str = MOMENTS) -> list[object]:
    return [each.record for each in read_lines(data_dir, stream) if isinstance(each, Line)]


def read_moments(data_dir: Path) -> list[Moment]:
    return [each for each in records(data_dir) if isinstance(each, Moment)]
