# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What services used, from made-up snapshots, and the requests and limits that fit it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from controller.agent.history.records import Line, Start, decode, encode
from controller.agent.history.sizes import (
    LEAST_NS,
    Advised,
    Amounts,
    ServiceUse,
    ServiceUses,
    advised,
)
from controller.agent.history.snapshots import SnapshotThinner
from controller.core.decision import Plan
from controller.core.model import Mode, QosClass, Snapshot, Workload, WorkloadSample
from controller.core.units import MIB, NS_PER_SEC
from controller.demo.simulated_knobs import make_workload
from tests.support.loops.closed_loop import make_settings

S = NS_PER_SEC
WALL_NS = 1_577_836_800 * S
MINUTE = 60
WEB = make_workload("web", 1, QosClass.LS, "default")
BATCH = make_workload("batch", 2, QosClass.BE, "default")
START = Start(version=1, boot_id="this boot", mode=Mode.OBSERVE, new_run=True, interval_ns=2 * S)


class Made:
    """Writes a history: counters of each workload that grow from one snapshot to the next."""

    def __init__(self, *workloads: Workload) -> None:
        self.workloads = workloads
        self.now_s = 1000
        self.lines: list[Line | str] = []
        self.restart()

    def restart(self, after_s: int = 0, oncpu_ns: int = 0) -> None:
        """Start an agent, whose counters begin at zero, or at *oncpu_ns* at its first snapshot."""
        self.now_s += after_s
        self.thinner = SnapshotThinner()
        self.samples = {
            each.cgroup: WorkloadSample(each.cgroup, oncpu_ns) for each in self.workloads
        }
        self._store(START)
        self._snapshot()

    def use(self, seconds: int, times: int = 1, *of: Workload, **changes: Any) -> None:
        """Grow counters by *changes* per second, *times* snapshots *seconds* apart.

        ``memory_bytes`` is a figure, not a counter.
        """
        for _ in range(times):
            self.now_s += seconds
            for each in of or self.workloads:
                old = self.samples[each.cgroup]
                new = {
                    name: value
                    if name == "memory_bytes"
                    else (getattr(old, name) or 0) + round(value * seconds)
                    for name, value in changes.items()
                }
                self.samples[each.cgroup] = old._replace(**new)
            self._snapshot()

    def _snapshot(self) -> None:
        samples = tuple(self.samples.values())
        snapshot = Snapshot(time_ns=self.now_s * S, age_ns=0, workloads=samples)
        plan = Plan(time_ns=snapshot.time_ns)
        self._store(self.thinner.entry(snapshot, plan, make_settings(), self.workloads))

    def _store(self, record: Any) -> None:
        self.lines += decode(iter(encode(WALL_NS + self.now_s * S, record).splitlines()))

    def read(self, since_s: int = 0, lines: Iterable[Line | str] | None = None) -> ServiceUses:
        uses = ServiceUses(WALL_NS + since_s * S, WALL_NS + self.now_s * S)
        uses.read(self.lines if lines is None else lines)
        return uses

    def web(self, since_s: int = 0) -> ServiceUse:
        return self.read(since_s).services["web"]


def fit(use: ServiceUse, now: Amounts | None = None) -> Advised:
    found = advised(use, now)
    assert found is not None
    return found


def test_the_request_is_what_is_exceeded_for_a_twentieth_of_the_time() -> None:
    made = Made(WEB, BATCH)
    made.use(MINUTE, 95, oncpu_ns=0.305 * S, memory_bytes=100 * MIB)
    made.use(MINUTE, 5, oncpu_ns=1.8 * S, memory_bytes=200 * MIB + 1)
    assert set(made.read().services) == {"web"}
    use = made.web()
    assert use.observed_ns == 100 * MINUTE * S
    found = fit(use)
    assert found.cpu_request_cpus == 0.31
    assert found.peak_cpus == pytest.approx(1.8)
    assert (found.memory_request_bytes, found.memory_limit_bytes) == (201 * MIB, 241 * MIB)
    made.use(MINUTE, 2, oncpu_ns=1.8 * S)
    assert fit(made.web()).cpu_request_cpus == 1.8


def test_nothing_is_advised_below_the_least_time() -> None:
    made = Made(WEB)
    made.use(MINUTE, LEAST_NS // (MINUTE * S) - 1, oncpu_ns=S)
    assert advised(made.web(), None) is None
    made.use(MINUTE, oncpu_ns=S)
    assert fit(made.web()).cpu_request_cpus == 1.0


def test_the_counters_of_another_run_begin_anew() -> None:
    made = Made(WEB)
    made.use(MINUTE, 3, oncpu_ns=0.5 * S)
    made.restart(after_s=10, oncpu_ns=1000 * S)
    made.use(MINUTE, 3, oncpu_ns=0.7 * S)
    use = made.web()
    assert use.observed_ns == 6 * MINUTE * S
    assert set(use.steps_ns) == {50, 70}


def test_a_counter_that_begins_anew_within_a_run_is_no_use() -> None:
    made = Made(WEB)
    made.use(MINUTE, 3, oncpu_ns=0.5 * S)
    made.samples[WEB.cgroup] = WorkloadSample(WEB.cgroup, 0)
    made.use(MINUTE, 3, oncpu_ns=0.1 * S)
    use = made.web()
    assert use.observed_ns == 5 * MINUTE * S
    assert set(use.steps_ns) == {50, 10}


def test_a_gap_is_not_observed_and_hides_no_other_time() -> None:
    made = Made(WEB)
    made.use(MINUTE, 2, oncpu_ns=0.5 * S)
    made.use(91, oncpu_ns=3 * S, memory_bytes=MIB)
    made.use(MINUTE, 2, oncpu_ns=0.5 * S)
    use = made.web()
    assert (use.observed_ns, use.steps_ns) == (4 * MINUTE * S, {50: 4 * MINUTE * S})


def test_what_cannot_be_read_is_left_out() -> None:
    made = Made(WEB)
    made.use(MINUTE, 3, oncpu_ns=0.5 * S)
    # Changes without their base are of no use until the next complete snapshot.
    lines = [*made.lines[:3], "damaged", *made.lines[3:]]
    assert made.read(lines=lines).services["web"].observed_ns == MINUTE * S
    assert made.read(lines=["damaged"]).services == {}


def test_only_the_time_that_was_asked_for_counts() -> None:
    made = Made(WEB)
    made.use(MINUTE, 5, oncpu_ns=2 * S, memory_bytes=900 * MIB)
    since_s = made.now_s + 1
    made.use(MINUTE, 5, oncpu_ns=0.5 * S, memory_bytes=100 * MIB)
    use = made.web(since_s)
    assert use.observed_ns == 5 * MINUTE * S
    assert use.peak_cpus == pytest.approx(0.5)
    assert use.peak_memory_bytes == 100 * MIB


def test_the_workloads_of_a_service_are_sized_alike_and_observed_once() -> None:
    other = make_workload("web-1", 3, QosClass.LS, "default")._replace(service="web")
    made = Made(WEB, other)
    for _ in range(10):
        made.use(30, 1, WEB, oncpu_ns=0.2 * S, memory_bytes=10 * MIB)
        made.use(30, 1, other, oncpu_ns=0.6 * S, memory_bytes=30 * MIB)
    use = made.web()
    assert use.observed_ns == 600 * S
    assert sum(use.steps_ns.values()) == 1200 * S
    assert (use.p95_cpus, use.peak_memory_bytes) == (0.6, 30 * MIB)


def test_a_throttled_service_needs_a_higher_limit_or_none() -> None:
    made = Made(WEB)
    made.use(MINUTE, 60, oncpu_ns=S, throttled_ns=0.5 * S)
    found = fit(made.web(), Amounts(1.1, None))
    # Of 1.5 s that its threads wanted to run in a second, it was throttled for a third.
    assert found.throttled_ratio == pytest.approx(1 / 3)
    assert found.cpu_limit_cpus == 1.32
    assert fit(made.web()).cpu_limit_cpus == 1.2


@pytest.mark.parametrize(("throttled_ns", "ratio"), [({"throttled_ns": 0}, 0.0), ({}, None)])
def test_a_service_that_is_not_throttled_needs_no_limit(
    throttled_ns: dict[str, int], ratio: float | None
) -> None:
    made = Made(WEB)
    made.use(MINUTE, 62, oncpu_ns=S, **throttled_ns)
    found = fit(made.web(), Amounts(1.0, None))
    assert (found.throttled_ratio, found.cpu_limit_cpus) == (ratio, None)


def test_the_distance_to_the_limit_of_memory_and_how_often_it_was_reached() -> None:
    made = Made(WEB)
    made.use(MINUTE, 60, oncpu_ns=S, memory_bytes=500 * MIB)
    made.use(1, 3, memory_limit_hits=4)
    made.use(1, 3, memory_limit_hits=4)
    found = fit(made.web(), Amounts(None, 512 * MIB))
    assert (found.oom_distance_bytes, found.memory_limit_bytes) == (12 * MIB, 600 * MIB)
    # The first reading is the base of the count.
    assert found.memory_limit_hits == 20
    assert fit(made.web(), Amounts(None, 400 * MIB)).oom_distance_bytes == -100 * MIB
    assert fit(made.web(), Amounts(None, None)).oom_distance_bytes is None
    assert fit(made.web()).oom_distance_bytes is None


def test_memory_that_was_not_measured_is_not_zero() -> None:
    made = Made(WEB)
    made.use(MINUTE, 60, oncpu_ns=0)
    found = fit(made.web(), Amounts(None, 512 * MIB))
    assert (
        found.memory_request_bytes is found.memory_limit_bytes is found.oom_distance_bytes is None
    )
    # Without a request it would have no weight.
    assert found.cpu_request_cpus == 0.01


def test_a_service_whose_cpu_use_was_not_measured_is_not_observed() -> None:
    made = Made(WEB)
    made.samples[WEB.cgroup] = WorkloadSample(WEB.cgroup, None, waits=1)
    made.use(MINUTE, 60, waits=3)
    assert made.web().observed_ns == 0
    assert advised(made.web(), None) is None


def test_the_last_workloads_and_the_boot_are_known() -> None:
    def newer(lines: list[Line | str]) -> Iterator[Line | str]:
        for line in lines:
            if isinstance(line, Line) and isinstance(line.record, Start):
                yield line._replace(record=replace(line.record, boot_id="later"))
            else:
                yield line

    made = Made(WEB, BATCH)
    made.use(MINUTE, 2, oncpu_ns=S)
    uses = made.read()
    assert (uses.workloads, uses.boot_id) == ((WEB, BATCH), "this boot")
    assert made.read(lines=newer(made.lines)).boot_id == "later"
