# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Blame per culprit, and best-effort's share of the wait of a service."""

import pytest

from controller.core.decision import PartKind
from controller.core.indicators.blame import BlameTracker, blame_deltas
from controller.core.indicators.counters import SampleDiff
from controller.core.model import Blame, CgroupId, QosClass, Workload, WorkloadSample
from controller.core.workload_index import WorkloadIndex
from tests.support.loops.closed_loop import make_settings

WEB, HOG, MOUSE, OTHER, DB = (CgroupId("cpu", number) for number in range(5))
SECOND = 1_000_000_000


def workload(cgroup: CgroupId) -> Workload:
    return Workload("batch", cgroup, "/batch", QosClass.BE, "batch", "default")


class Context:
    """A blame tracker with a service and two best-effort workloads."""

    def __init__(self) -> None:
        web = Workload("web", WEB, "/web", QosClass.LS, "web", "default")
        workloads = [web, workload(HOG), workload(MOUSE)]
        self.index = WorkloadIndex(workloads, make_settings().profiles)
        self.samples = SampleDiff()
        self.blame = BlameTracker()


def feed(
    context: Context,
    second: int,
    named: dict[CgroupId | None, int],
    total: int,
    own: int | None = None,
    outside_cpus: float = 0.0,
) -> None:
    """Feed one second: *named* ns of wait per culprit and second, *total* ns inflicted in all.

    *own* is the wait of the service for its own tasks in ns; ``None``: not measured. Work outside
    the workloads uses *outside_cpus*.
    """
    whole = None if own is None else second * (total + own)
    waits = WorkloadSample(WEB, wait_inflicted_ns=second * total, wait_total_ns=whole)
    context.samples.update((waits,))
    context.blame.update(
        tuple(Blame(WEB, culprit, True, second * wait) for culprit, wait in named.items()),
        context.samples,
        context.index,
        {WEB: 0.2, HOG: 0.6, MOUSE: 0.2, OTHER: 0.8},
        outside_cpus,
        SECOND if second else 0,
    )


def test_attributed_wait_makes_the_share_and_the_average() -> None:
    context = Context()
    for second in range(120):
        feed(context, second, {HOG: 300_000_000, OTHER: 100_000_000}, 400_000_000)
    assert context.blame.share("web") == pytest.approx(0.75, rel=0.01)
    assert context.blame.culprits[HOG] == pytest.approx(0.3, rel=0.05)
    assert MOUSE not in context.blame.culprits


def test_unattributed_wait_is_divided_by_cpu_use() -> None:
    context = Context()
    for second in range(120):
        feed(context, second, {}, 400_000_000)
    # Best-effort used 0.8 of the 1.6 CPUs that workloads other than the service used.
    assert context.blame.share("web") == pytest.approx(0.5, rel=0.01)
    assert context.blame.culprits[HOG] == pytest.approx(3 * context.blame.culprits[MOUSE], rel=0.01)


def test_unattributed_wait_is_also_due_to_work_outside_the_workloads() -> None:
    context = Context()
    for second in range(120):
        feed(context, second, {}, 400_000_000, outside_cpus=14.4)
    # Best-effort used 0.8 of the 16 CPUs that were used by others than the service.
    assert context.blame.share("web") == pytest.approx(0.05, rel=0.01)
    assert sum(context.blame.culprits.values()) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("own", "share"),
    [(None, 0.75), (0, 0.75), (1_200_000_000, 0.75), (3_600_000_000, 0.3), (39_600_000_000, 0.03)],
)
def test_the_share_is_small_where_a_service_waits_for_its_own_tasks(
    own: int | None, share: float
) -> None:
    context = Context()
    for second in range(120):
        feed(context, second, {HOG: 300_000_000, OTHER: 100_000_000}, 400_000_000, own)
    assert context.blame.share("web") == pytest.approx(share, rel=0.01)


def test_blame_is_kept_by_victim() -> None:
    context = Context()
    other = Workload("db", DB, "/db", QosClass.LS, "db", "default")
    index = context.index
    context.index = WorkloadIndex(
        [Workload("web", WEB, "/web", QosClass.LS, "web", "default"), other, workload(HOG)],
        make_settings().profiles,
    )
    for second in range(120):
        context.blame.update(
            (
                Blame(WEB, HOG, True, second * 300_000_000),
                Blame(DB, HOG, True, second * 100_000_000),
                Blame(DB, OTHER, True, second * 100_000_000),
            ),
            context.samples,
            context.index,
            {HOG: 0.6},
            0.0,
            SECOND if second else 0,
        )
    assert context.blame.blame_for("web") == {HOG: pytest.approx(0.3, rel=0.05)}
    assert context.blame.blame_for("db") == {HOG: pytest.approx(0.1, rel=0.05)}
    assert context.blame.use == {HOG: pytest.approx(0.6, rel=0.05)}
    context.index = index
    feed(context, 1, {}, 0)
    assert context.blame.blame_for("db") == {}


def test_parts_are_by_who_caused_them_without_best_effort_work() -> None:
    context = Context()
    web, db, *others = (
        Workload(name, cgroup, f"/{name}", qos, name, "default")
        for name, cgroup, qos in (
            ("web", WEB, QosClass.LS),
            ("db", DB, QosClass.LS),
            ("job", HOG, QosClass.BE),
        )
    )
    context.index = WorkloadIndex([web, db, *others], make_settings().profiles)
    rates = {(WEB, DB): 0.1, (WEB, HOG): 0.1, (WEB, OTHER): 0.05, (WEB, None): 0.05, (HOG, DB): 1}
    for second in range(60):
        # The service waits for one second in ten for the host, and for two in ten for itself.
        tenth = second * SECOND // 10
        waits = WorkloadSample(
            WEB,
            wait_total_ns=10 * tenth,
            wait_inflicted_ns=4 * tenth,
            wait_host_ns=tenth,
            throttled_ns=3 * tenth,
        )
        blame = tuple(
            Blame(victim, culprit, True, round(second * cpus * SECOND))
            for (victim, culprit), cpus in {**rates, (DB, HOG): 1}.items()
        )
        context.samples.update((waits,))
        dt_ns = SECOND if second else 0
        # Only work outside all workloads could have inflicted the tenth that has no name.
        context.blame.update(blame, context.samples, context.index, {}, 1.0, dt_ns)
    assert context.blame.parts.of("web") == pytest.approx(
        {
            DB: 0.1,
            OTHER: 0.05,
            PartKind.OUTSIDE: 0.05,
            PartKind.UNKNOWN: 0.1,
            PartKind.HOST: 0.1,
            PartKind.SELF: 0.2,
        }
    )
    assert context.blame.parts.of("db") == {}
    context.index = WorkloadIndex([db], make_settings().profiles)
    context.blame.update((), context.samples, context.index, {}, 0.0, SECOND)
    assert context.blame.parts.of("web") == {}


def test_unattributed_wait_is_divided_by_the_use_of_the_same_time() -> None:
    context = Context()
    for second in range(120):
        feed(context, second, {}, 400_000_000)
    blame = context.blame.blame_for("web")
    assert blame[HOG] == pytest.approx(3 * blame[MOUSE], rel=0.01)
    assert blame[HOG] == pytest.approx(context.blame.culprits[HOG], rel=0.01)


def test_without_a_wait_there_is_no_share() -> None:
    context = Context()
    for second in range(5):
        feed(context, second, {}, 0)
    assert context.blame.share("web") is None


def test_the_average_decays_within_minutes() -> None:
    context = Context()
    for second in range(60):
        feed(context, second, {HOG: 300_000_000}, 300_000_000)
    before = context.blame.culprits[HOG]
    for _ in range(30):
        feed(context, 59, {HOG: 300_000_000}, 300_000_000)
    assert context.blame.culprits[HOG] == pytest.approx(before / 2.718, rel=0.05)


@pytest.mark.parametrize("hours", [0.1, 1, 1000])
def test_a_service_that_waits_for_the_first_time_after_hours_has_blame(hours: float) -> None:
    """Also if nothing was measured meanwhile."""
    context = Context()
    feed(context, 0, {HOG: 0}, 0)
    feed(context, 1, {HOG: 0}, 0)
    context.blame.update((), context.samples, context.index, {}, 0.0, round(hours * 3600 * SECOND))
    feed(context, 2, {HOG: 0}, 0)
    for second in range(3, 120):
        feed(context, second, {HOG: 300_000_000, OTHER: 100_000_000}, 400_000_000)
    assert context.blame.blame_for("web")[HOG] == pytest.approx(0.3, rel=0.05)
    assert context.blame.parts.of("web")[OTHER] == pytest.approx(0.1, rel=0.05)


def test_differences_in_place_and_by_name_agree() -> None:
    old = (Blame(WEB, HOG, True, 10), Blame(WEB, None, False, 5))
    new = (Blame(WEB, HOG, True, 15), Blame(WEB, None, False, 5), Blame(WEB, MOUSE, True, 2))
    expected = {(WEB, HOG, True, 5), (WEB, MOUSE, True, 2)}
    assert set(blame_deltas(old, new)) == expected
    assert set(blame_deltas(old, new[::-1])) == expected


def test_a_first_list_and_shrunken_counters_give_no_difference() -> None:
    assert blame_deltas((), (Blame(WEB, HOG, True, 15),)) == []
    assert blame_deltas((Blame(WEB, HOG, True, 15),), (Blame(WEB, HOG, True, 3),)) == []
    assert blame_deltas((Blame(WEB, HOG, True, 15), Blame(WEB, MOUSE, True, 1)), ()) == []
