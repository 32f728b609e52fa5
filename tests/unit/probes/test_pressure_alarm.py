# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Triggers in pressure files: which there are, what they tell, and when they go."""

from collections.abc import Iterator
import errno
import os
from pathlib import Path
import select

import pytest

from controller.core.model import CgroupId, IndicatorName, QosClass, Workload
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.probes.pressure_alarm import PressureAlarm
from tests.support.pressure_files import PressureFiles, allowing

WEB = Workload("web", CgroupId("v2", 6), "/web", QosClass.LS, "web", "slow")
DB = Workload("db", CgroupId("v2", 7), "/db", QosClass.LS, "db", "slow")
OTHER = Workload("other", CgroupId("v2", 8), "/other", QosClass.LS, "other", "default")
JOB = Workload("job", CgroupId("v2", 9), "/job", QosClass.BE, "job", "slow")
ALLOWED = WEB.cgroup, DB.cgroup, JOB.cgroup
MEMORY, IO = IndicatorName.PSI_MEMORY, IndicatorName.PSI_IO
FILES = [
    f"{w}/{r}.pressure" for w in ("web", "db", "other", "job") for r in ("cpu", "memory", "io")
]
WEB_MEMORY, WEB_IO, DB_MEMORY = "web/memory.pressure", "web/io.pressure", "db/memory.pressure"


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


class Bench:
    """An alarm for ``web``, ``db`` and a job, with the reasons for refused triggers."""

    def __init__(self, files: PressureFiles, kernel: tuple[int, int] = (6, 12)) -> None:
        self.files = files
        self.told: list[str] = []
        self.alarm = PressureAlarm(Path("/unified"), self.told.append, kernel)
        self.limits = allowing({MEMORY: 0.1, IO: 0.05}, *ALLOWED)
        self.alarm.set_workloads([WEB, DB, OTHER, JOB])

    def arm(self, now_ns: int = 0) -> None:
        self.alarm.arm(self.limits, now_ns)

    @property
    def is_readable(self) -> bool:
        poll = select.poll()
        if self.alarm.fd is not None:
            poll.register(self.alarm.fd, select.POLLIN)
        return bool(poll.poll(0))


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[PressureFiles]:
    files = PressureFiles(monkeypatch, *FILES)
    yield files
    files.close_all()


@pytest.fixture
def bench(files: PressureFiles) -> Iterator[Bench]:
    bench = Bench(files)
    yield bench
    bench.alarm.close()


def test_what_a_sweet_point_allows_is_the_trigger(bench: Bench) -> None:
    bench.arm()
    assert bench.files.text(WEB_MEMORY) == "some 200000 2000000"
    assert bench.files.text(WEB_IO) == "some 100000 2000000"
    assert bench.files.opened == 4, "services with such limits only"


@pytest.mark.parametrize(
    ("window_ns", "text"),
    [
        (100 * NS_PER_MS, "some 50000 500000"),
        (NS_PER_SEC, "some 100000 1000000"),
        (60 * NS_PER_SEC, "some 1000000 10000000"),
    ],
)
def test_the_window_is_that_of_the_indicator_if_the_kernel_has_it(
    bench: Bench, window_ns: int, text: str
) -> None:
    bench.limits = allowing({MEMORY: 0.1}, WEB.cgroup, window_ns=window_ns)
    bench.arm()
    assert bench.files.text(WEB_MEMORY) == text


def test_pressure_makes_the_file_readable_and_is_taken_once(bench: Bench) -> None:
    bench.arm()
    assert not bench.is_readable
    assert not bench.alarm.take()
    bench.files.fire(DB_MEMORY)
    assert bench.is_readable
    bench.alarm.hear()
    assert bench.alarm.has_fired
    assert bench.alarm.fd is None, "until it is armed again"


def test_what_a_wait_has_taken_away_counts(bench: Bench) -> None:
    """The kernel's file is no longer urgent after a poll of the descriptor of all."""
    bench.arm()
    bench.alarm.hear()
    assert bench.alarm.has_fired
    assert bench.alarm.has_fired
    assert bench.alarm.take()
    assert not bench.alarm.take()


def test_pressure_that_comes_while_nothing_is_armed_is_kept(bench: Bench) -> None:
    bench.arm()
    bench.alarm.hear()
    assert bench.alarm.take()
    bench.files.fire(WEB_IO)
    assert bench.alarm.fd is None
    assert bench.alarm.take()


def test_a_removed_cgroup_is_dropped_and_tells_nothing(bench: Bench) -> None:
    bench.arm()
    before = descriptors()
    bench.files.remove(WEB_MEMORY)
    assert bench.is_readable
    bench.alarm.hear()
    assert not bench.alarm.take()
    assert len(before - descriptors()) == 2  # both ends
    bench.arm()
    assert not bench.is_readable
    bench.files.remove(WEB_IO)
    bench.files.fire(DB_MEMORY)
    assert bench.alarm.take(), "the other one is not lost"
    assert bench.told == []


def test_triggers_follow_the_workloads(bench: Bench) -> None:
    bench.alarm.set_workloads([WEB])
    bench.arm()
    assert bench.files.opened == 2
    bench.alarm.set_workloads([WEB, DB])
    assert bench.files.opened == 2, "not before it is armed"
    bench.arm()
    assert bench.files.opened == 4, "those that stay are not made again"
    bench.alarm.set_workloads([DB])
    bench.arm()
    assert (bench.files.is_open(WEB_IO), bench.files.is_open(DB_MEMORY)) == (False, True)
    again = CgroupId("v2", 70)
    bench.alarm.set_workloads([DB._replace(cgroup=again)])
    bench.limits = allowing({MEMORY: 0.1, IO: 0.05}, again)
    bench.arm()
    assert bench.files.opened == 6, "another cgroup of the same name"
    bench.limits = allowing({MEMORY: 0.2}, again)
    bench.arm()
    assert bench.files.text(DB_MEMORY) == "some 400000 2000000"
    assert bench.files.opened == 7


def test_a_trigger_follows_a_sweet_point_that_moves_far(bench: Bench) -> None:
    bench.limits = allowing({MEMORY: 0.1}, WEB.cgroup)
    bench.arm()
    for second, point in enumerate((0.109, 0.091, 0.1, 0.11, 0.09), 1):
        bench.limits = allowing({MEMORY: point}, WEB.cgroup)
        bench.arm(second * NS_PER_SEC)
    assert bench.files.text(WEB_MEMORY) == "some 200000 2000000"
    assert bench.files.opened == 1, "10 % is not far"
    before = descriptors()
    bench.limits = allowing({MEMORY: 0.111}, WEB.cgroup)
    bench.arm(6 * NS_PER_SEC)
    assert bench.files.text(WEB_MEMORY) == "some 222000 2000000"
    assert len(descriptors()) == len(before), "in place of the old one"
    bench.limits = allowing({MEMORY: 0.101}, WEB.cgroup)
    bench.arm(7 * NS_PER_SEC)
    assert bench.files.opened == 2, "measured from the trigger that is there"
    bench.files.fire(WEB_MEMORY)
    assert bench.alarm.take()


def test_steps_that_are_small_add_up(bench: Bench) -> None:
    for tick in range(21):
        bench.limits = allowing({MEMORY: 0.1 + 0.01 * tick}, WEB.cgroup)
        bench.arm(tick * NS_PER_SEC)
    assert bench.files.text(WEB_MEMORY) == "some 580000 2000000"
    assert bench.files.opened == 9  # 0.10, 0.12, 0.14, 0.16, 0.18, 0.20, 0.23, 0.26, 0.29


def test_one_trigger_is_replaced_in_a_second_and_each_has_its_turn(bench: Bench) -> None:
    """The sweet points change with each tick, which is the most that a learner does."""
    bench.arm()
    assert bench.files.opened == 4
    replaced = []
    for tick in range(1, 41):
        bench.limits = allowing({MEMORY: 0.1 + tick % 2, IO: 0.05 + tick % 2}, *ALLOWED)
        before = bench.files.opened
        bench.arm(NS_PER_SEC // 5 * tick)
        replaced.append(bench.files.opened - before)
    assert max(replaced) == 1
    assert sum(replaced) == 8
    assert set(bench.files.opened_by_name) == {WEB_MEMORY, WEB_IO, DB_MEMORY, "db/io.pressure"}
    assert set(bench.files.opened_by_name.values()) == {3}


def test_a_change_that_has_to_wait_is_not_forgotten(bench: Bench) -> None:
    bench.arm()
    bench.limits = allowing({MEMORY: 0.2, IO: 0.1}, *ALLOWED)
    for tick in range(4):
        bench.arm(tick * NS_PER_SEC)
    assert bench.files.opened == 8
    bench.arm(5 * NS_PER_SEC)
    assert bench.files.opened == 8
    assert bench.files.text(DB_MEMORY) == "some 400000 2000000"


def test_a_refused_trigger_is_asked_for_again_when_its_sweet_point_moves(bench: Bench) -> None:
    bench.files.refusals[WEB_MEMORY] = errno.EINVAL
    bench.limits = allowing({MEMORY: 1.5}, WEB.cgroup)
    bench.arm()
    bench.limits = allowing({MEMORY: 1.6}, WEB.cgroup)
    bench.arm(NS_PER_SEC)
    assert bench.told == ["memory.pressure: Invalid argument"]
    bench.files.refusals.clear()
    bench.limits = allowing({MEMORY: 0.5}, WEB.cgroup)
    bench.arm(2 * NS_PER_SEC)
    assert bench.files.text(WEB_MEMORY) == "some 1000000 2000000"
    bench.files.refusals[WEB_MEMORY] = errno.EBUSY
    bench.limits = allowing({MEMORY: 0.6}, WEB.cgroup)
    bench.arm(3 * NS_PER_SEC)
    assert bench.alarm.fd is None, "the old one would tell of another sweet point"
    assert bench.told[1:] == ["memory.pressure: Device or resource busy"]


def test_no_descriptor_stays_open(files: PressureFiles) -> None:
    before = descriptors()
    bench = Bench(files)
    for _ in range(3):
        bench.arm()
        bench.files.fire(WEB_IO)
        bench.alarm.close()
        assert bench.alarm.fd is None
        assert not bench.alarm.take()
    files.close_all()
    assert descriptors() == before
    assert files.opened == 12


def test_there_are_at_most_a_hundred(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = [WEB._replace(cgroup=CgroupId("v2", n), path=f"/{n}") for n in range(100, 220)]
    many = PressureFiles(monkeypatch, *(f"{n}/memory.pressure" for n in range(100, 220)))
    bench.limits = allowing({MEMORY: 0.1}, *(each.cgroup for each in crowd))
    bench.alarm.set_workloads(crowd)
    bench.arm()
    assert many.opened == 100
    many.close_all()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.EBUSY, errno.EACCES])
def test_a_refused_trigger_is_told_once_and_the_others_are_made(bench: Bench, number: int) -> None:
    bench.files.refusals[WEB_IO] = number
    for _ in range(3):
        bench.alarm.set_workloads([WEB, DB])
        bench.arm()
    assert bench.told == [f"io.pressure: {os.strerror(number)}"]
    assert bench.files.opened == 3


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_missing_file_is_no_refusal_and_is_tried_again(bench: Bench, number: int) -> None:
    bench.files.refusals = dict.fromkeys(FILES, number)
    bench.arm()
    assert (bench.told, bench.alarm.fd) == ([], None)
    bench.files.refusals.clear()
    bench.arm()
    assert bench.alarm.fd is None, "nothing came or went"
    bench.alarm.set_workloads([WEB])
    bench.arm()
    assert bench.alarm.fd is not None


def test_without_a_cgroup2_tree_there_is_no_trigger(files: PressureFiles) -> None:
    told: list[str] = []
    alarm = PressureAlarm(None, told.append, (5, 4))
    alarm.set_workloads([WEB])
    alarm.arm(allowing({MEMORY: 0.1}, WEB.cgroup), 0)
    assert (alarm.fd, alarm.take(), told, files.opened) == (None, False, [], 0)


def test_a_kernel_with_unsafe_triggers_gets_none(files: PressureFiles) -> None:
    bench = Bench(files, kernel=(6, 4))
    bench.arm()
    assert bench.told == ["not safe before Linux 6.5"]
    assert (bench.alarm.fd, files.opened) == (None, 0)
