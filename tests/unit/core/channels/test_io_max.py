# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which disks io.max limits, tick by tick."""

import pytest

from controller.core.channels.io_max import IoMaxRung
from controller.core.channels.ladder import TickContext
from controller.core.harm.harm_finder import HarmFinder
from controller.core.harm.resource_usage import ResourceUsage
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.knob_values import disks_in, parse_disks
from controller.core.knobs.knob_state import KnobState
from controller.core.model import (
    CgroupId,
    Channel,
    DiskRequests,
    Knob,
    KnobReading,
    KnobValue,
    QosClass,
    Snapshot,
    Target,
    TargetKind,
    Workload,
    WorkloadSample,
)
from controller.core.settings import DiskFacts
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import SECOND_NS, make_settings

WEB, STORE, BATCH = CgroupId("v2", 1), CgroupId("v2", 2), CgroupId("v2", 3)
TARGET = Target(TargetKind.CGROUP, "v2", 3, "/batch")
INDEX = WorkloadIndex(
    [
        Workload("web", WEB, "/web", QosClass.LS, "web", "default"),
        Workload("store", STORE, "/store", QosClass.LS, "store", "default"),
        Workload("batch", BATCH, "/batch", QosClass.BE, "batch", "default"),
    ],
    make_settings().profiles,
)
ONE, TWO, THREE, OTHER = "8:0", "8:16", "8:32", "7:0"
ALL = [ONE, TWO, THREE]


class Bench:
    """A rung for three disks, and a job that reads 100 MB/s, with the limits *original*."""

    def __init__(self, original: str = "max") -> None:
        self.original = KnobValue(original)
        self.rung = IoMaxRung(tuple(DiskFacts(each, 1e9, 1e9) for each in ALL))
        self.knobs, self.usage = KnobState(), ResourceUsage()
        self.second, self.read = 0, 0
        self.refuses = False
        self.hold(self.original)
        self.counts: dict[CgroupId, dict[str, int]] = {}

    def hold(self, value: KnobValue) -> None:
        """Let the job have *value*."""
        original = None if value == self.original else self.original
        reading = KnobReading(TARGET, Knob.IO_MAX, value, original)
        self.knobs.update((reading,), (), True, self.second * SECOND_NS)

    def step(self, part: float, *asking: str, **used: str) -> str | None:
        """Make a tick a second after the last; return the value for the job, if one is planned.

        *used* is the disk to which each service sends requests, or ``none``.
        """
        self.second += 1
        self.read += 100_000_000
        for name, disk in used.items():
            counts = self.counts.setdefault({"web": WEB, "store": STORE}[name], {})
            if disk != "none":
                counts[disk] = counts.get(disk, 0) + 1
        samples = (
            WorkloadSample(BATCH, io_bytes=self.read),
            *(
                WorkloadSample(
                    each,
                    io_bytes=0,
                    requests_by_disk=tuple(DiskRequests(*item) for item in counts.items()),
                )
                for each, counts in self.counts.items()
            ),
        )
        now_ns = self.second * SECOND_NS
        snapshot = Snapshot(time_ns=now_ns, age_ns=0, workloads=samples)
        self.usage.update(snapshot, INDEX, {Channel.IO: part > 0})
        context = TickContext(
            now_ns=now_ns,
            dt_s=1.0,
            resync=False,
            tracker=IndicatorTracker(),
            workload_index=INDEX,
            knobs=self.knobs,
            usage=self.usage,
            harm=HarmFinder(),
            asking=frozenset(asking),
        )
        assert self.rung.usable(context)
        self.rung.set_part(part, context)
        changes = dict(self.rung.changes(context))
        if BATCH not in changes:
            return None
        value = changes[BATCH] or self.original
        if not self.refuses:
            self.hold(value)
        return value

    def warm_up(self, **used: str) -> None:
        for _ in range(3):
            assert self.step(0.0, **used) is None


def disks_of(value: str | None) -> list[str]:
    return [] if value is None else disks_in(parse_disks(KnobValue(value)))


def test_only_disks_of_services_that_ask_are_limited() -> None:
    bench = Bench()
    bench.warm_up(web=ONE, store=TWO)
    assert disks_of(bench.step(0.5, "store", web=ONE, store=TWO)) == [TWO]
    for _ in range(20):
        bench.step(0.5, "store", web=ONE, store=TWO)
    assert bench.step(0.5, "store", web=ONE, store=TWO) is None, "the amount stands"
    assert disks_of(bench.step(0.5, "web", "store", web=ONE, store=TWO)) == [ONE, TWO]
    assert bench.step(0.5, "web", "store", web=ONE, store=TWO) is None
    assert disks_of(bench.step(0.9, "web", web=ONE, store=TWO)) == [ONE, TWO]
    for _ in range(12):
        bench.step(0.9, "web", web=ONE, store=ONE)
    assert disks_of(bench.step(0.1, "web", web=ONE, store=ONE)) == [ONE, TWO], "until it is let go"


def test_a_disk_that_was_added_in_a_refused_write_is_planned_again() -> None:
    bench = Bench()
    bench.warm_up(web=ONE, store=TWO)
    for _ in range(20):
        bench.step(0.5, "store", web=ONE, store=TWO)
    bench.refuses = True
    assert disks_of(bench.step(0.5, "web", "store", web=ONE, store=TWO)) == [ONE, TWO]
    bench.refuses = False
    found = [bench.step(0.5, "web", "store", web=ONE, store=TWO) for _ in range(3)]
    assert [ONE, TWO] in map(disks_of, found)


def test_limits_of_another_program_stay() -> None:
    bench = Bench(f"{TWO} rbps=5000;{OTHER} wiops=7")
    bench.warm_up(web=ONE)
    value = bench.step(0.5, "web", web=ONE)
    assert value is not None
    limits = parse_disks(KnobValue(value))
    assert {key: limits[key] for key in ((TWO, "rbps"), (OTHER, "wiops"))} == {
        (TWO, "rbps"): 5000,
        (OTHER, "wiops"): 7,
    }
    assert limits.keys() == {(TWO, "rbps"), (OTHER, "wiops"), (ONE, "rbps"), (ONE, "wbps")}


def test_a_use_that_just_began_is_waited_for() -> None:
    bench = Bench()
    bench.warm_up(web="none")
    assert bench.step(0.5, "web", web="none") is None
    assert bench.step(0.5, "web", web="none") is None
    assert disks_of(bench.step(0.5, "web", web=TWO)) == [TWO]

    bench = Bench()
    bench.warm_up(web="none")
    assert [bench.step(0.5, "web", web="none") for _ in range(3)] == [None] * 3
    assert disks_of(bench.step(0.5, "web", web="none")) == ALL, "the use is unknown"


@pytest.mark.parametrize("used", [{}, {"web": ONE}])
def test_a_squeeze_that_is_not_measured_or_nobody_asked_for_is_on_all_disks(
    used: dict[str, str],
) -> None:
    bench = Bench()
    bench.warm_up(**used)
    asking = () if used else ("web",)
    assert disks_of(bench.step(1.0, *asking, **used)) == ALL
    assert bench.rung.describe().startswith("disks 57.2")


def test_an_old_use_counts_for_ten_seconds_and_a_disk_for_the_whole_squeeze() -> None:
    bench = Bench()
    bench.warm_up(web=ONE)
    for _ in range(8):
        bench.step(0.0, web=TWO)
    assert disks_of(bench.step(0.5, "web", web=TWO)) == [ONE, TWO]

    bench = Bench()
    bench.warm_up(web=ONE)
    for _ in range(12):
        bench.step(0.0, web=TWO)
    assert disks_of(bench.step(0.5, "web", web=TWO)) == [TWO]
    values = [bench.step(0.5 + n / 100, "web", web=TWO) for n in range(40)]
    assert {tuple(disks_of(value)) for value in values if value} == {(TWO,)}
    bench.rung.release()
    assert bench.step(0.0, web=ONE) == "max"
    bench.step(0.0, web=ONE)
    bench.step(0.0, web=ONE)
    for _ in range(10):
        bench.step(0.0, web=ONE)
    assert disks_of(bench.step(0.5, "web", web=ONE)) == [ONE]


def test_a_service_that_gets_quiet_or_is_not_counted_for_a_while_keeps_its_disks() -> None:
    bench = Bench()
    bench.warm_up(web=ONE)
    values = [bench.step(0.5, "web", web=ONE)]
    values += [bench.step(0.5 + n / 100, "web", web="none") for n in range(20)]
    bench.counts.clear()
    values += [bench.step(0.8 + n / 100, "web") for n in range(5)]
    assert {tuple(disks_of(value)) for value in values if value} == {(ONE,)}


def test_it_says_which_disks_are_limited() -> None:
    bench = Bench()
    assert bench.rung.describe() == "disks not limited"
    bench.warm_up(web=TWO)
    for _ in range(3):
        bench.step(0.5, "web", web=TWO)
    assert bench.rung.describe().startswith(f"disks {TWO} ")
