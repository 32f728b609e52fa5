# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Indicators of a service from its counters, computed from whole snapshots."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from controller.core.decision import Indicator, IndicatorStatus, OffLoop
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.model import (
    CgroupId,
    Channel,
    IndicatorName,
    QosClass,
    ServiceReading,
    Snapshot,
    Workload,
    WorkloadSample,
)
from controller.core.planner import Planner
from controller.core.settings import IndicatorSpec, LoadBin, Profile
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import SECOND_NS, TICK_NS, make_settings, make_spec

LONGEST_GAP_NS = 5 * TICK_NS
WEB, TWO = CgroupId("cpu", 1), CgroupId("cpu", 2)
PRESSURES = (IndicatorName.PSI_CPU, IndicatorName.PSI_MEMORY, IndicatorName.PSI_IO)
# Of one busy CPU at 3 GHz in one tick.
CYCLES, INSTRUCTIONS, MISSES = 600_000_000, 400_000_000, 800_000


def spec_of(name: IndicatorName, **changes: object) -> IndicatorSpec:
    spec = replace(make_spec(), name=name, sweet_point=1.0, resolution=0.001, min_samples=0)
    return replace(spec, **changes)  # type: ignore[arg-type]


class Bench:
    """A tracker and a service of two workloads; a tick has the samples that it is given."""

    def __init__(self, spec: IndicatorSpec) -> None:
        self.spec = spec
        base = make_settings().profiles["default"]
        profile: Profile = replace(base, indicators=(spec,))
        workloads = [
            Workload(f"web{each.id}", each, f"/web{each.id}", QosClass.LS, "web", "default")
            for each in (WEB, TWO)
        ]
        self.workload_index = WorkloadIndex(workloads, {"default": profile})
        self.tracker = IndicatorTracker()
        self.now_ns = 0

    def tick(
        self,
        *samples: WorkloadSample,
        services: Sequence[ServiceReading] = (),
        age_ns: int = 0,
        pressure_ns: int | None = None,
        dt_ns: int = TICK_NS,
    ) -> Indicator | None:
        self.now_ns += dt_ns
        snapshot = Snapshot(
            time_ns=self.now_ns,
            age_ns=age_ns,
            workloads=samples,
            services=tuple(services),
            pressure_ns=pressure_ns,
        )
        self.tracker.update(snapshot, self.workload_index, dt_ns, 2 * TICK_NS, LONGEST_GAP_NS)
        return self.tracker.indicator(self.workload_index.services["web"], self.spec)

    def run(self, samples: Sequence[WorkloadSample]) -> Indicator | None:
        found = None
        for sample in samples:
            found = self.tick(sample)
        return found


def busy(tick: int, cgroup: CgroupId = WEB, cpus: float = 1.0, cpi: float = 1.5) -> WorkloadSample:
    """The counters of a workload that has run *cpus* for *tick* ticks."""
    return WorkloadSample(
        cgroup,
        oncpu_ns=round(tick * cpus * TICK_NS),
        wait_inflicted_ns=0,
        cycles=round(tick * cpus * INSTRUCTIONS * cpi),
        instructions=round(tick * cpus * INSTRUCTIONS),
        llc_misses=round(tick * cpus * MISSES),
    )


def with_counter(sample: WorkloadSample, field: str, count: int | None) -> WorkloadSample:
    return WorkloadSample(**{**sample._asdict(), field: count})


def test_cpi_and_misses_per_thousand_instructions() -> None:
    cpi = Bench(spec_of(IndicatorName.CPI)).run([busy(tick) for tick in range(1, 10)])
    assert cpi is not None
    assert (cpi.value, cpi.status, cpi.worst) == (1.5, IndicatorStatus.FRESH, WEB)
    assert cpi.samples == 5 * INSTRUCTIONS // 1000
    mpki = Bench(spec_of(IndicatorName.LLC_MPKI)).run([busy(tick) for tick in range(1, 10)])
    assert mpki is not None
    assert mpki.value == 2.0


@pytest.mark.parametrize("name", [IndicatorName.CPI, IndicatorName.LLC_MPKI])
def test_a_counter_that_has_never_existed_is_no_source(name: IndicatorName) -> None:
    bench = Bench(spec_of(name))
    for tick in range(1, 20):
        sample = busy(tick)._replace(cycles=None, llc_misses=None)
        assert bench.tick(sample) is None
    # The counters exist and stay at zero, as in a virtual machine without a PMU.
    bench = Bench(spec_of(name))
    for tick in range(1, 20):
        sample = busy(tick)._replace(cycles=0, instructions=0, llc_misses=0)
        assert bench.tick(sample) is None


@pytest.mark.parametrize("missing", ["cycles", "instructions"])
def test_a_counter_that_disappears_is_stale_and_starts_again(missing: str) -> None:
    bench = Bench(spec_of(IndicatorName.CPI))
    bench.run([busy(tick) for tick in range(1, 10)])
    gone = bench.tick(with_counter(busy(10), missing, None))
    assert gone is not None
    assert (gone.status, gone.value) == (IndicatorStatus.STALE, None)
    back = bench.tick(busy(11))
    assert back is not None
    assert (back.status, back.value) == (IndicatorStatus.FRESH, None)
    again = bench.tick(busy(12))
    assert again is not None
    assert again.value == 1.5


def test_a_counter_that_does_not_change_while_the_service_runs_is_dead() -> None:
    bench = Bench(spec_of(IndicatorName.CPI))
    bench.run([busy(tick) for tick in range(1, 10)])
    stuck = [
        busy(tick)._replace(cycles=9 * CYCLES, instructions=9 * INSTRUCTIONS)
        for tick in range(10, 40)
    ]
    alive = bench.run(stuck[:8])
    assert alive is not None
    assert alive.status is IndicatorStatus.FRESH
    dead = bench.run(stuck[8:])
    assert dead is not None
    assert (dead.status, dead.value) == (IndicatorStatus.STALE, None)


def test_counters_that_are_read_once_a_second_are_not_dead_between() -> None:
    """On-CPU time changes in every tick, the counters in every sixth."""
    bench = Bench(spec_of(IndicatorName.CPI))
    for tick in range(60):
        old = busy(tick - tick % 6)
        found = bench.tick(busy(tick)._replace(cycles=old.cycles, instructions=old.instructions))
        if tick > 6:
            assert found is not None
            assert found.status is IndicatorStatus.FRESH
        if tick > 11:
            assert found is not None
            assert found.value == 1.5


def test_cpi_without_the_sched_probe_is_stale() -> None:
    bench = Bench(spec_of(IndicatorName.CPI))
    bench.run([busy(tick) for tick in range(1, 10)])
    old = bench.tick(busy(10), age_ns=3 * TICK_NS)
    assert old is not None
    assert old.status is IndicatorStatus.STALE


def test_a_counter_that_shrank_starts_the_window_again() -> None:
    bench = Bench(spec_of(IndicatorName.CPI))
    bench.run([busy(tick, cpi=3.0) for tick in range(1, 10)])
    # The id was reused for another cgroup, whose counters started at zero.
    reused = bench.tick(busy(1, cpi=1.0))
    assert reused is not None
    assert (reused.status, reused.value) == (IndicatorStatus.FRESH, None)
    then = bench.tick(busy(2, cpi=1.0))
    assert then is not None
    assert then.value == 1.0


def test_the_counters_of_a_removed_workload_are_dropped() -> None:
    bench = Bench(spec_of(IndicatorName.CPI))
    bench.run([busy(tick) for tick in range(1, 10)])
    before = bench.workload_index
    bench.workload_index = WorkloadIndex([], {})
    bench.tracker.update(
        Snapshot(time_ns=bench.now_ns + TICK_NS, age_ns=0, workloads=()),
        bench.workload_index,
        TICK_NS,
        2 * TICK_NS,
        LONGEST_GAP_NS,
    )
    bench.workload_index = before
    bench.now_ns += TICK_NS
    again = bench.tick(busy(100, cpi=9.0))
    assert again is not None
    assert again.value is None


def test_a_gap_starts_the_window_again() -> None:
    bench = Bench(spec_of(IndicatorName.CPI))
    bench.run([busy(tick, cpi=1.0) for tick in range(1, 10)])
    after = bench.tick(busy(100, cpi=9.0), dt_ns=60 * SECOND_NS)
    assert after is not None
    assert (after.status, after.value) == (IndicatorStatus.FRESH, None)


def test_a_service_that_hardly_runs_has_no_cpi() -> None:
    idle = Bench(spec_of(IndicatorName.CPI)).run([busy(t, cpus=0.009) for t in range(1, 10)])
    assert idle is not None
    assert (idle.status, idle.value) == (IndicatorStatus.IDLE, None)
    enough = Bench(spec_of(IndicatorName.CPI)).run([busy(t, cpus=0.011) for t in range(1, 10)])
    assert enough is not None
    assert enough.value == pytest.approx(1.5)


def test_a_service_that_is_kept_from_running_is_not_idle() -> None:
    waits = [
        busy(tick, cpus=0.005)._replace(wait_inflicted_ns=tick * TICK_NS) for tick in range(1, 10)
    ]
    starved = Bench(spec_of(IndicatorName.CPI)).run(waits)
    assert starved is not None
    assert (starved.status, starved.value) == (IndicatorStatus.FRESH, None)


def test_few_instructions_stretch_the_window_and_then_give_no_value() -> None:
    per_tick = INSTRUCTIONS // 1000
    bench = Bench(spec_of(IndicatorName.CPI, min_samples=10 * per_tick))
    short = bench.run([busy(tick) for tick in range(1, 9)])
    assert short is not None
    assert (short.status, short.value) == (IndicatorStatus.FRESH, None)
    stretched = bench.run([busy(tick) for tick in range(9, 13)])
    assert stretched is not None
    assert stretched.value == 1.5
    assert stretched.samples == 10 * per_tick


def test_the_worst_workload_is_chosen_by_the_sweet_point_of_its_load() -> None:
    bins = (LoadBin(0.2, 2.0), LoadBin(0.5, 4.0))
    bench = Bench(spec_of(IndicatorName.CPI, sweet_point=1.0, bins=bins))
    found = None
    for tick in range(1, 10):
        found = bench.tick(busy(tick, cpus=0.8, cpi=4.4), busy(tick, TWO, cpus=0.3, cpi=3.0))
    assert found is not None
    # 3.0 of 2.0 is worse than 4.4 of 4.0.
    assert (found.worst, found.value, found.sweet_point) == (TWO, 3.0, 2.0)
    low = Bench(spec_of(IndicatorName.CPI, bins=bins)).run([busy(t, cpus=0.1) for t in range(9)])
    assert low is not None
    assert low.sweet_point == 1.0


def serving(
    tick: int, packets: int, cgroup: CgroupId = WEB, cpus: float = 0.5, waits: float = 0.0
) -> WorkloadSample:
    """The counters of a workload that has run *cpus* and *waits* for *tick* ticks."""
    return WorkloadSample(
        cgroup,
        oncpu_ns=round(tick * cpus * TICK_NS),
        wait_inflicted_ns=round(tick * waits * TICK_NS),
        tx_packets=packets // 2,
        rx_packets=packets - packets // 2,
    )


PER_PACKET = IndicatorName.CPU_PER_PACKET


def test_cpu_time_per_packet_of_both_directions() -> None:
    bench = Bench(spec_of(PER_PACKET))
    found = None
    for tick in range(1, 10):
        # 100 ms of CPU and 10,000 packets, or 5,000, in each tick.
        found = bench.tick(serving(tick, 10_000 * tick), serving(tick, 5_000 * tick, TWO))
    assert found is not None
    assert (found.value, found.worst, found.samples) == (20_000.0, TWO, 25_000)
    assert found.status is IndicatorStatus.FRESH


def test_the_load_of_cpu_time_per_packet_is_the_rate_of_packets() -> None:
    bins = (LoadBin(20_000.0, 2.0), LoadBin(100_000.0, 1.0))
    found = Bench(spec_of(PER_PACKET, sweet_point=3.0, bins=bins)).run(
        [serving(tick, 10_000 * tick) for tick in range(1, 10)]
    )
    assert found is not None
    assert found.sweet_point == 2.0


def test_packets_that_are_counted_once_a_second_give_the_exact_time_per_packet() -> None:
    """On-CPU time changes in every tick, the packets in every sixth."""
    bench = Bench(spec_of(PER_PACKET))
    values = []
    for tick in range(60):
        found = bench.tick(serving(tick, 10_000 * (tick - tick % 6)))
        values.append(None if found is None else found.value)
    assert values[20:] == [10_000.0] * 40


def test_a_workload_that_computes_without_packets_is_idle() -> None:
    bench = Bench(spec_of(PER_PACKET, min_samples=100))
    bench.run([serving(tick, 10_000 * tick) for tick in range(1, 20)])
    found = bench.run([serving(tick, 190_000 + tick) for tick in range(20, 25)])
    assert found is not None
    assert found.status is IndicatorStatus.FRESH
    found = bench.run([serving(tick, 190_000 + tick) for tick in range(25, 60)])
    assert found is not None
    assert (found.status, found.value) == (IndicatorStatus.IDLE, None)
    # The counter stands still altogether.
    found = bench.run([serving(tick, 190_060) for tick in range(60, 100)])
    assert found is not None
    assert (found.status, found.value) == (IndicatorStatus.IDLE, None)
    found = bench.run([serving(tick, 10_000 * (tick - 81)) for tick in range(101, 120)])
    assert found is not None
    assert found.value == pytest.approx(10_000.0, rel=0.1)


def test_a_workload_without_packets_because_it_waits_for_a_cpu_is_not_idle() -> None:
    bench = Bench(spec_of(PER_PACKET, min_samples=100))
    bench.run([serving(tick, 10_000 * tick, cpus=0.1, waits=2.0) for tick in range(1, 20)])
    found = bench.run([serving(t, 190_000 + t, cpus=0.1, waits=2.0) for t in range(20, 60)])
    assert found is not None
    assert (found.status, found.value) == (IndicatorStatus.FRESH, None)
    found = bench.run([serving(t, 190_000 + t, cpus=0.001, waits=2.0) for t in range(2000, 2040)])
    assert found is not None
    assert (found.status, found.value) == (IndicatorStatus.FRESH, None)


def test_time_per_packet_needs_packets_and_the_sched_probe() -> None:
    bench = Bench(spec_of(PER_PACKET))
    for tick in range(1, 20):
        assert bench.tick(serving(tick, 0)) is None
        assert bench.tick(busy(tick)) is None
    bench.run([serving(tick, 10_000 * tick) for tick in range(20, 40)])
    old = bench.tick(serving(40, 400_000), age_ns=3 * TICK_NS)
    assert old is not None
    assert old.status is IndicatorStatus.STALE
    gone = bench.tick(busy(41))
    assert gone is not None
    assert gone.status is IndicatorStatus.STALE


def psi(name: IndicatorName, total_ns: int | None) -> WorkloadSample:
    return with_counter(WorkloadSample(WEB), f"{name.value}_some_ns", total_ns)


@pytest.mark.parametrize("name", PRESSURES)
def test_pressure_that_is_read_once_a_second(name: IndicatorName) -> None:
    """The value is 30 % in every tick, although pressure is read in every fifth or sixth only."""
    bench = Bench(spec_of(name, window_ns=SECOND_NS))
    read_ns, values = 0, []
    for tick in range(1, 60):
        now_ns = tick * TICK_NS
        if now_ns - read_ns >= SECOND_NS + (TICK_NS if tick % 2 else 0):
            read_ns = now_ns
        sample = psi(name, round(0.3 * read_ns))
        found = bench.tick(sample, pressure_ns=read_ns)
        assert found is not None
        assert found.status is IndicatorStatus.FRESH
        values.append(found.value)
    assert values[0] is None
    known = [value for value in values if value is not None]
    assert len(known) > 50
    assert known == pytest.approx([0.3] * len(known))


def test_pressure_is_a_ratio_and_needs_no_cpu_time() -> None:
    bench = Bench(spec_of(IndicatorName.PSI_MEMORY))
    for tick in range(1, 10):
        found = bench.tick(psi(IndicatorName.PSI_MEMORY, tick * (TICK_NS + 1000)), age_ns=10**12)
    assert found is not None
    assert (found.value, found.status) == (1.0, IndicatorStatus.FRESH)
    gone = bench.tick(psi(IndicatorName.PSI_MEMORY, None))
    assert gone is not None
    assert gone.status is IndicatorStatus.STALE
    assert Bench(spec_of(IndicatorName.PSI_IO)).tick(WorkloadSample(WEB)) is None


def strained(refaults: int | None, hits: int | None, cgroup: CgroupId = WEB) -> WorkloadSample:
    return WorkloadSample(cgroup, refaults=refaults, memory_limit_hits=hits)


def test_refaults_are_pages_per_second_by_the_time_of_their_reading() -> None:
    bench = Bench(spec_of(IndicatorName.REFAULTS, window_ns=2 * SECOND_NS))
    values = []
    for tick in range(40):
        read_ns = (tick - tick % 6) * TICK_NS  # every 1.2 s
        found = bench.tick(strained(read_ns // 1_000_000, 0), pressure_ns=read_ns)
        assert found is not None
        values.append(found.value)
    assert values[6:] == [1000.0] * 34
    for _ in range(6):
        gone = bench.tick(strained(None, None), pressure_ns=bench.now_ns)
    assert gone is not None
    assert gone.status is IndicatorStatus.STALE


@pytest.mark.parametrize("name", [IndicatorName.REFAULTS, IndicatorName.PSI_MEMORY])
def test_a_hit_of_an_own_limit_is_remembered_for_the_window(name: IndicatorName) -> None:
    bench = Bench(spec_of(name, window_ns=2 * SECOND_NS))
    service = bench.workload_index.services["web"]

    def hits(count: int | None) -> bool:
        sample = strained(0, count)._replace(psi_memory_some_ns=0)
        other = strained(0, 7, TWO)._replace(psi_memory_some_ns=0)
        bench.tick(sample, other, dt_ns=SECOND_NS)
        return bench.tracker.counted.hits_own_limit(service, bench.spec)

    # What was counted before the first reading is of another time.
    assert [hits(each) for each in (5, 5, 6, 6, 6, 6)] == [False, False, True, True, False, False]
    assert [hits(each) for each in (None, 9, 9)] == [False] * 3


def test_without_an_indicator_of_memory_no_hits_are_kept() -> None:
    bench = Bench(spec_of(IndicatorName.PSI_IO))
    for count in range(5):
        bench.tick(strained(0, count), dt_ns=SECOND_NS)
    assert not bench.tracker.counted.hits_own_limit(
        bench.workload_index.services["web"], bench.spec
    )


def waited(requests: int, wait_ms: float, inflicted_ms: float, cgroup: CgroupId) -> WorkloadSample:
    return WorkloadSample(
        cgroup,
        disk_requests=requests,
        disk_wait_ns=round(wait_ms * 1e6),
        disk_inflicted_ns=round(inflicted_ms * 1e6),
    )


def test_the_wait_for_disks_is_that_of_a_mean_request_of_the_worst_workload() -> None:
    bench = Bench(spec_of(IndicatorName.DISK_WAIT, min_samples=10))
    service = bench.workload_index.services["web"]
    for n in range(1, 9):
        # Each second 50 requests of 2 ms, a quarter of it inflicted, and 100 of 1 ms of the other.
        samples = waited(10 * n, 20 * n, 5 * n, WEB), waited(20 * n, 20 * n, 15 * n, TWO)
        found = bench.tick(*samples)
    assert found is not None
    assert (found.value, found.worst, found.load) == (2e6, WEB, 50.0)
    assert bench.tracker.counted.disk_share(service, bench.spec) == 0.5


def test_a_service_without_requests_is_idle_and_one_with_few_has_no_value() -> None:
    bench = Bench(spec_of(IndicatorName.DISK_WAIT, min_samples=10))
    service = bench.workload_index.services["web"]
    assert bench.tick(waited(0, 0, 0, WEB)) is None, "it never made one"
    assert bench.tracker.counted.disk_share(service, bench.spec) is None
    for n in (9, 9, 9):
        found = bench.tick(waited(n, n, 0, WEB))
    assert found is not None
    assert (found.status, found.value) == (IndicatorStatus.FRESH, None)
    for _ in range(25):
        found = bench.tick(waited(9, 9, 0, WEB))
    assert found is not None
    assert (found.status, found.value) == (IndicatorStatus.IDLE, None)
    assert bench.tracker.counted.disk_share(service, bench.spec) == 0.0


def test_the_pressure_of_disks_has_the_same_evidence_and_that_of_memory_has_none() -> None:
    for name, share in ((IndicatorName.PSI_IO, 0.5), (IndicatorName.PSI_MEMORY, None)):
        bench = Bench(spec_of(name))
        for n in range(9):
            bench.tick(waited(10 * n, 20 * n, 10 * n, WEB))
        service = bench.workload_index.services["web"]
        assert bench.tracker.counted.disk_share(service, bench.spec) == share


def test_traffic_is_both_directions_per_second() -> None:
    bench = Bench(spec_of(IndicatorName.NET_RATE))
    for tick in range(1, 10):
        found = bench.tick(
            WorkloadSample(WEB, tx_bytes=tick * 1000, rx_bytes=tick * 500),
            WorkloadSample(TWO, tx_bytes=tick * 2000, rx_bytes=0),
        )
    assert found is not None
    assert (found.value, found.worst) == (10_000.0, TWO)


def test_traffic_that_is_counted_once_a_second_is_not_zero_between() -> None:
    bench = Bench(spec_of(IndicatorName.NET_RATE))
    values = []
    for tick in range(60):
        read = tick - tick % 6  # at intervals a little longer than the window
        found = bench.tick(WorkloadSample(WEB, tx_bytes=read * 1000, rx_bytes=0))
        assert found is not None
        values.append(found.value)
    assert values[20:] == pytest.approx([5000.0] * 40, rel=0.21)
    for _ in range(30):
        found = bench.tick(WorkloadSample(WEB, tx_bytes=60_000, rx_bytes=0))
    assert found is not None
    assert found.value == 0.0


def test_the_own_figure_of_a_service() -> None:
    bench = Bench(spec_of(IndicatorName.SERVICE, is_time=True, sweet_point=5e6))
    assert bench.tick() is None
    for reading, status, value in (
        (ServiceReading("web", 7e6, 30 * SECOND_NS), IndicatorStatus.FRESH, 7e6),
        (ServiceReading("web", None, SECOND_NS), IndicatorStatus.IDLE, None),
        (ServiceReading("web", None, None), IndicatorStatus.STALE, None),
    ):
        found = bench.tick(services=[ServiceReading("other", 1.0, 0), reading])
        assert found is not None
        assert (found.status, found.value) == (status, value)


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [(1.0, "lost"), (0.6, "lost"), (0.4, ""), (0.0, "")],
    ids=["as before", "less load", "hardly any load", "asleep"],
)
@pytest.mark.parametrize(
    ("age_ns", "otherwise"), [(0, "idle"), (None, "stale")], ids=["no value", "dead"]
)
def test_a_service_that_works_without_a_figure_is_not_idle(
    age_ns: int | None, otherwise: str, cpus: float, expected: str
) -> None:
    bench = Bench(spec_of(IndicatorName.SERVICE, is_time=True, sweet_point=5e6))
    for tick in range(1, 40):
        known = [ServiceReading("web", 7e6, 0)]
        bench.tick(busy(tick), services=known)
    for more in range(1, 40):
        ran = busy(39)._replace(oncpu_ns=round((39 + more * cpus) * TICK_NS))
        found = bench.tick(ran, services=[ServiceReading("web", None, age_ns)])
    assert found is not None
    assert found.status == (expected or otherwise)


def test_a_figure_that_never_came_is_not_lost() -> None:
    bench = Bench(spec_of(IndicatorName.SERVICE, is_time=True, sweet_point=5e6))
    for tick in range(1, 40):
        found = bench.tick(busy(tick), services=[ServiceReading("web", None, None)])
    assert found is not None
    assert found.status is IndicatorStatus.STALE


def test_a_loop_without_a_source_is_reported_as_off() -> None:
    cpi = spec_of(IndicatorName.CPI, channel=Channel.CACHE)
    settings = make_settings()
    profile = replace(settings.profiles["default"], indicators=(make_spec(), cpi))
    settings = replace(settings, profiles={"default": profile})
    planner = Planner(settings, [Workload("web", WEB, "/web", QosClass.LS, "web", "default")])
    for tick in range(1, 10):
        snapshot = Snapshot(time_ns=tick * TICK_NS, age_ns=0, workloads=(WorkloadSample(WEB),))
        plan = planner.step(snapshot, ())
    assert plan.off == (OffLoop("web", IndicatorName.CPI, Channel.CACHE),)
    # The waits for a CPU are always expected: without them the node goes to its safe state.
    assert [report.status for report in plan.loops] == [IndicatorStatus.STALE]
    assert plan.safe
