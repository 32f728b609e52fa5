# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The room of best-effort work, and the limits that follow from it."""

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.memory import (
    RoomMeter,
    capacity_bytes,
    limit_bytes,
    margin_bytes,
    squeezed_bytes,
)
from controller.core.model import CgroupId, MemoryUse
from controller.core.settings import HostFacts, MemoryGuard
from controller.core.units import NS_PER_SEC

MIB = 1 << 20
GIB = 1 << 30
NODE = HostFacts(cpus=4, memory_bytes=16 * GIB)


def use(used: int, needed: int | None = None, version: str = "v2") -> MemoryUse:
    return MemoryUse(CgroupId(version, 7), used, used if needed is None else needed)


@pytest.mark.parametrize(
    ("guard", "memory_gib", "watermark_mib", "margin_mib"),
    [
        (MemoryGuard(), 64, 100, 0.03 * 64 * 1024),
        (MemoryGuard(), 2, 20, 100 + 0.01 * 2 * 1024),
        (MemoryGuard(), 16, 400, 800),
        (MemoryGuard(margin_bytes=7 * MIB), 16, 400, 7),
        (MemoryGuard(capacity_bytes=300 * MIB), 16, 400, 9),
    ],
    ids=["3 %", "kubelet's eviction", "watermarks", "given", "part of the host"],
)
def test_margin(guard: MemoryGuard, memory_gib: int, watermark_mib: int, margin_mib: float) -> None:
    host = HostFacts(
        cpus=4, memory_bytes=memory_gib * GIB, high_watermark_bytes=watermark_mib * MIB
    )
    assert margin_bytes(guard, host) == pytest.approx(margin_mib * MIB, abs=1)


def test_capacity_is_that_of_the_host_unless_given() -> None:
    assert capacity_bytes(MemoryGuard(), NODE) == 16 * GIB
    assert capacity_bytes(MemoryGuard(capacity_bytes=5), NODE) == 5
    assert capacity_bytes(MemoryGuard(), HostFacts(cpus=1)) is None


def test_the_peak_of_the_others_counts_for_a_minute() -> None:
    meter = RoomMeter()
    rooms = {
        second: meter.update(second * NS_PER_SEC, others, capacity=1000, margin=100)
        for second, others in ((0, 200), (1, 500), (2, 300), (60, 100), (61, 100), (62, 100))
    }
    assert rooms == {0: 700, 1: 400, 2: 400, 60: 400, 61: 600, 62: 800}


def test_what_becomes_best_effort_work_leaves_the_peak() -> None:
    meter = RoomMeter()
    assert meter.update(0, 800, capacity=1000, margin=100) == 100
    assert meter.update(NS_PER_SEC, 250, capacity=1000, margin=100, moved_bytes=600) == 650
    # The others needed less than what moved when they were measured.
    assert meter.update(2 * NS_PER_SEC, 50, capacity=1000, margin=100, moved_bytes=300) == 850


@given(
    amounts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 1000)), min_size=1, max_size=60)
)
def test_the_peak_is_the_largest_of_the_last_minute(amounts: list[tuple[int, int]]) -> None:
    meter, now, seen = RoomMeter(), 0, []
    for step, others in amounts:
        now += step
        seen.append((now, others))
        meter.update(now * NS_PER_SEC, others, 0, 0)
        assert meter.others_bytes == max(each for at, each in seen if at > now - 60)


sizes = st.integers(0, 64 * GIB)


@given(
    used=sizes,
    reclaimable=st.floats(0, 1),
    spare=st.integers(-64 * GIB, 64 * GIB),
    now=st.one_of(st.just(math.inf), sizes),
    version=st.sampled_from(["v1", "v2"]),
)
def test_no_limit_is_lowered_below_the_use(
    used: int, reclaimable: float, spare: int, now: float, version: str
) -> None:
    needed = used - round(used * reclaimable)
    limit = limit_bytes(use(used, needed, version), spare, now)
    allowed = needed + spare
    if version == "v2" and limit < now:
        assert limit >= used + 64 * MIB
    if limit < now:  # v1 refuses a limit below what is needed
        assert limit > needed
    if limit > now:  # while more is needed than the room, no limit is raised
        assert allowed - MIB < limit <= allowed
    if allowed >= now + MIB:
        assert limit > now


def test_a_limit_follows_the_room_in_both_directions() -> None:
    now = limit_bytes(use(100 * MIB), 900 * MIB, math.inf)
    assert now == 1000 * MIB
    now = limit_bytes(use(100 * MIB), 300 * MIB, now)
    assert now == 400 * MIB
    now = limit_bytes(use(390 * MIB), -50 * MIB, now)
    assert now == 400 * MIB, "64 MiB above the use is more than it has"
    now = limit_bytes(use(200 * MIB), -50 * MIB, now)
    assert now == 264 * MIB
    assert limit_bytes(use(200 * MIB), 100 * MIB, now) == 300 * MIB


def test_page_cache_is_reclaimed_step_by_step_on_v1() -> None:
    cached = use(used=1000 * MIB, needed=100 * MIB, version="v1")
    assert limit_bytes(cached, 200 * MIB, math.inf) == 936 * MIB
    assert limit_bytes(cached._replace(used_bytes=320 * MIB), 200 * MIB, 936 * MIB) == 300 * MIB


@pytest.mark.parametrize(
    ("capacity", "spared"), [(300 * MIB, 64 * MIB), (4 * GIB, 512 * MIB), (64 * GIB, GIB)]
)
def test_a_squeeze_leaves_what_is_needed_and_something_to_grow(capacity: int, spared: int) -> None:
    cached = use(used=20 * GIB, needed=3 * GIB, version="v1")
    assert squeezed_bytes(cached, 20 * GIB, 1.0, capacity) == 3 * GIB + spared
    assert squeezed_bytes(cached, 20 * GIB, 0.0, capacity) == 20 * GIB
    assert squeezed_bytes(cached, 2 * GIB, 0.5, capacity) == 3 * GIB + spared


@given(
    used=sizes,
    reclaimable=st.floats(0, 1),
    top=sizes,
    part=st.floats(0, 1),
    spare=sizes,
    now=st.one_of(st.just(math.inf), sizes),
    capacity=sizes,
)
def test_a_squeeze_ends_no_work_that_grows_by_less_than_it_is_left(
    used: int, reclaimable: float, top: int, part: float, spare: int, now: float, capacity: int
) -> None:
    it = use(used, used - round(used * reclaimable), "v1")
    most = squeezed_bytes(it, top, part, capacity)
    limit = limit_bytes(it, spare, now, most)
    free = limit_bytes(it, spare, now)
    assert limit <= max(free, now)
    if limit < min(free, now):  # lower than the guard alone would have it
        assert limit >= it.needed_bytes + min(spare, 63 * MIB)


def test_in_a_squeeze_page_cache_is_reclaimed_step_by_step() -> None:
    cached = use(used=1000 * MIB, needed=100 * MIB, version="v1")
    assert limit_bytes(cached, 2000 * MIB, math.inf, 300 * MIB) == 936 * MIB
    assert limit_bytes(cached._replace(used_bytes=320 * MIB), 0, 936 * MIB, 300 * MIB) == 256 * MIB
    assert limit_bytes(cached, 2000 * MIB, 300 * MIB, 500 * MIB) == 500 * MIB
