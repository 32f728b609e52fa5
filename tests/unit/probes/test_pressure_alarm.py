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
from tests.support.pressure_files import PressureFiles, asking

WEB = Workload("web", CgroupId("v2", 6), "/web", QosClass.LS, "web", "slow")
DB = Workload("db", CgroupId("v2", 7), "/db", QosClass.LS, "db", "slow")
OTHER = Workload("other", CgroupId("v2", 8), "/other", QosClass.LS, "other", "default")
JOB = Workload("job", CgroupId("v2", 9), "/job", QosClass.BE, "job", "slow")
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
        self.alarm.reconfigure(asking({MEMORY: 0.1, IO: 0.05}))
        self.alarm.set_workloads([WEB, DB, OTHER, JOB])

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
    bench.alarm.arm()
    assert bench.files.text(WEB_MEMORY) == "some 200000 2000000"
    assert bench.files.text(WEB_IO) == "some 100000 2000000"
    assert bench.files.opened == 4, "services with such a profile only"


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
    bench.alarm.reconfigure(asking({MEMORY: 0.1, IO: None}, window_ns=window_ns))
    bench.alarm.arm()
    assert bench.files.text(WEB_MEMORY) == text
    assert bench.files.opened == 2, "a sweet point that is to be learned has none"


def test_pressure_makes_the_file_readable_and_is_taken_once(bench: Bench) -> None:
    bench.alarm.arm()
    assert not bench.is_readable
    assert not bench.alarm.take()
    bench.files.fire(DB_MEMORY)
    assert bench.is_readable
    bench.alarm.hear()
    assert bench.alarm.has_fired
    assert bench.alarm.fd is None, "until it is armed again"


def test_what_a_wait_has_taken_away_counts(bench: Bench) -> None:
    """The kernel's file is no longer urgent after a poll of the descriptor of all."""
    bench.alarm.arm()
    bench.alarm.hear()
    assert bench.alarm.has_fired
    assert bench.alarm.has_fired
    assert bench.alarm.take()
    assert not bench.alarm.take()


def test_pressure_that_comes_while_nothing_is_armed_is_kept(bench: Bench) -> None:
    bench.alarm.arm()
    bench.alarm.hear()
    assert bench.alarm.take()
    bench.files.fire(WEB_IO)
    assert bench.alarm.fd is None
    assert bench.alarm.take()


def test_a_removed_cgroup_is_dropped_and_tells_nothing(bench: Bench) -> None:
    bench.alarm.arm()
    before = descriptors()
    bench.files.remove(WEB_MEMORY)
    assert bench.is_readable
    bench.alarm.hear()
    assert not bench.alarm.take()
    assert len(before - descriptors()) == 2  # both ends
    bench.alarm.arm()
    assert not bench.is_readable
    bench.files.remove(WEB_IO)
    bench.files.fire(DB_MEMORY)
    assert bench.alarm.take(), "the other one is not lost"
    assert bench.told == []


def test_triggers_follow_the_workloads(bench: Bench) -> None:
    bench.alarm.set_workloads([WEB])
    bench.alarm.arm()
    assert bench.files.opened == 2
    bench.alarm.set_workloads([WEB, DB])
    assert bench.files.opened == 2, "not before it is armed"
    bench.alarm.arm()
    assert bench.files.opened == 4, "those that stay are not made again"
    bench.alarm.set_workloads([DB])
    bench.alarm.arm()
    assert (bench.files.is_open(WEB_IO), bench.files.is_open(DB_MEMORY)) == (False, True)
    bench.alarm.set_workloads([DB._replace(cgroup=CgroupId("v2", 70))])
    bench.alarm.arm()
    assert bench.files.opened == 6, "another cgroup of the same name"
    bench.alarm.reconfigure(asking({MEMORY: 0.2}))
    bench.alarm.arm()
    assert bench.files.text(DB_MEMORY) == "some 400000 2000000"
    assert bench.files.opened == 7


def test_no_descriptor_stays_open(files: PressureFiles) -> None:
    before = descriptors()
    bench = Bench(files)
    for _ in range(3):
        bench.alarm.arm()
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
    bench.alarm.reconfigure(asking({MEMORY: 0.1}))
    bench.alarm.set_workloads(crowd)
    bench.alarm.arm()
    assert many.opened == 100
    many.close_all()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.EBUSY, errno.EACCES])
def test_a_refused_trigger_is_told_once_and_the_others_are_made(bench: Bench, number: int) -> None:
    bench.files.refusals[WEB_IO] = number
    for _ in range(3):
        bench.alarm.set_workloads([WEB, DB])
        bench.alarm.arm()
    assert bench.told == [f"io.pressure: {os.strerror(number)}"]
    assert bench.files.opened == 3


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENODEV])
def test_a_missing_file_is_no_refusal_and_is_tried_again(bench: Bench, number: int) -> None:
    bench.files.refusals = dict.fromkeys(FILES, number)
    bench.alarm.arm()
    assert (bench.told, bench.alarm.fd) == ([], None)
    bench.files.refusals.clear()
    bench.alarm.arm()
    assert bench.alarm.fd is None, "nothing came or went"
    bench.alarm.set_workloads([WEB])
    bench.alarm.arm()
    assert bench.alarm.fd is not None


def test_without_a_cgroup2_tree_there_is_no_trigger(files: PressureFiles) -> None:
    told: list[str] = []
    alarm = PressureAlarm(None, told.append, (5, 4))
    alarm.reconfigure(asking({MEMORY: 0.1}))
    alarm.set_workloads([WEB])
    alarm.arm()
    assert (alarm.fd, alarm.take(), told, files.opened) == (None, False, [], 0)


def test_a_kernel_with_unsafe_triggers_gets_none(files: PressureFiles) -> None:
    bench = Bench(files, kernel=(6, 4))
    bench.alarm.arm()
    assert bench.told == ["not safe before Linux 6.5"]
    assert (bench.alarm.fd, files.opened) == (None, 0)
