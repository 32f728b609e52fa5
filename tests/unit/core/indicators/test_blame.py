# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from controller.core.indicators.blame import BlameTracker, blame_deltas
from controller.core.indicators.counters import SampleDiff
from controller.core.model import Blame, CgroupId, QosClass, Workload, WorkloadSample
from controller.core.workload_index import WorkloadIndex
from tests.closed_loop import make_settings

WEB, HOG, MOUSE, OTHER = (CgroupId("cpu", number) for number in range(4))
SECOND = 1_000_000_000


def workload(cgroup: CgroupId) -> Workload:
    return Workload("batch", cgroup, "/batch", QosClass.BE, "batch", "default")


class Scene:
    """A service, two best-effort workloads and another one."""

    def __init__(self) -> None:
        web = Workload("web", WEB, "/web", QosClass.LS, "web", "default")
        everybody = [web, workload(HOG), workload(MOUSE)]
        self.index = WorkloadIndex(everybody, make_settings().profiles)
        self.samples = SampleDiff()
        self.knobs = BlameTracker()


def feed(
    context: Scene,
    second: int,
    named: dict[CgroupId | None, int],
    total: int,
    own: int | None = None,
) -> None:
    """One second more: *named* ns of wait per culprit and second, *total* inflicted in all.

    *own* is what the service waited for its own tasks; ``None``: that is not measured.
    """
    whole = None if own is None else second * (total + own)
    waits = WorkloadSample(WEB, wait_inflicted_ns=second * total, wait_total_ns=whole)
    context.samples.update((waits,))
    context.knobs.update(
        tuple(Blame(WEB, culprit, True, second * wait) for culprit, wait in named.items()),
        context.samples,
        context.index,
        {WEB: 0.2, HOG: 0.6, MOUSE: 0.2, OTHER: 0.8},
        SECOND if second else 0,
    )


def test_named_blame_makes_the_share_and_the_average() -> None:
    context = Scene()
    for second in range(120):
        feed(context, second, {HOG: 300_000_000, OTHER: 100_000_000}, 400_000_000)
    assert context.knobs.share("web") == pytest.approx(0.75, rel=0.01)
    assert context.knobs.culprits[HOG] == pytest.approx(0.3, rel=0.05)
    assert MOUSE not in context.knobs.culprits


def test_unknown_blame_goes_by_cpu_use() -> None:
    context = Scene()
    for second in range(120):
        feed(context, second, {}, 400_000_000)
    # Best-effort used 0.8 of the 1.6 CPUs that others than the service used.
    assert context.knobs.share("web") == pytest.approx(0.5, rel=0.01)
    assert context.knobs.culprits[HOG] == pytest.approx(3 * context.knobs.culprits[MOUSE], rel=0.01)


@pytest.mark.parametrize(
    ("own", "share"),
    [(None, 0.75), (0, 0.75), (1_200_000_000, 0.75), (3_600_000_000, 0.3), (39_600_000_000, 0.03)],
)
def test_of_a_wait_that_is_for_its_own_tasks_others_caused_little(
    own: int | None, share: float
) -> None:
    context = Scene()
    for second in range(120):
        feed(context, second, {HOG: 300_000_000, OTHER: 100_000_000}, 400_000_000, own)
    assert context.knobs.share("web") == pytest.approx(share, rel=0.01)


def test_no_wait_has_no_share() -> None:
    context = Scene()
    for second in range(5):
        feed(context, second, {}, 0)
    assert context.knobs.share("web") is None


def test_the_average_fades_within_minutes() -> None:
    context = Scene()
    for second in range(60):
        feed(context, second, {HOG: 300_000_000}, 300_000_000)
    before = context.knobs.culprits[HOG]
    for _ in range(30):
        feed(context, 59, {HOG: 300_000_000}, 300_000_000)
    assert context.knobs.culprits[HOG] == pytest.approx(before / 2.718, rel=0.05)


def test_gains_in_place_and_by_name_agree() -> None:
    old = (Blame(WEB, HOG, True, 10), Blame(WEB, None, False, 5))
    new = (Blame(WEB, HOG, True, 15), Blame(WEB, None, False, 5), Blame(WEB, MOUSE, True, 2))
    expected = {(WEB, HOG, True, 5), (WEB, MOUSE, True, 2)}
    assert set(blame_deltas(old, new)) == expected
    assert set(blame_deltas(old, new[::-1])) == expected


def test_the_first_list_and_shrunken_counters_gain_nothing() -> None:
    assert blame_deltas((), (Blame(WEB, HOG, True, 15),)) == []
    assert blame_deltas((Blame(WEB, HOG, True, 15),), (Blame(WEB, HOG, True, 3),)) == []
    assert blame_deltas((Blame(WEB, HOG, True, 15), Blame(WEB, MOUSE, True, 1)), ()) == []
