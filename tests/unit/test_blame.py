# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from controller.core.indicators.blame import BlameBook, blame_gains
from controller.core.indicators.counters import Samples
from controller.core.model import Blame, CgroupId, QosClass, Workload, WorkloadSample
from controller.core.workload_index import Roster
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
        self.roster = Roster(everybody, make_settings().profiles)
        self.samples = Samples()
        self.book = BlameBook()


def feed(
    scene: Scene,
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
    scene.samples.update((waits,))
    scene.book.update(
        tuple(Blame(WEB, culprit, True, second * wait) for culprit, wait in named.items()),
        scene.samples,
        scene.roster,
        {WEB: 0.2, HOG: 0.6, MOUSE: 0.2, OTHER: 0.8},
        SECOND if second else 0,
    )


def test_named_blame_makes_the_share_and_the_average() -> None:
    scene = Scene()
    for second in range(120):
        feed(scene, second, {HOG: 300_000_000, OTHER: 100_000_000}, 400_000_000)
    assert scene.book.share("web") == pytest.approx(0.75, rel=0.01)
    assert scene.book.culprits[HOG] == pytest.approx(0.3, rel=0.05)
    assert MOUSE not in scene.book.culprits


def test_unknown_blame_goes_by_cpu_use() -> None:
    scene = Scene()
    for second in range(120):
        feed(scene, second, {}, 400_000_000)
    # Best-effort used 0.8 of the 1.6 CPUs that others than the service used.
    assert scene.book.share("web") == pytest.approx(0.5, rel=0.01)
    assert scene.book.culprits[HOG] == pytest.approx(3 * scene.book.culprits[MOUSE], rel=0.01)


@pytest.mark.parametrize(
    ("own", "share"),
    [(None, 0.75), (0, 0.75), (1_200_000_000, 0.75), (3_600_000_000, 0.3), (39_600_000_000, 0.03)],
)
def test_of_a_wait_that_is_for_its_own_tasks_others_caused_little(
    own: int | None, share: float
) -> None:
    scene = Scene()
    for second in range(120):
        feed(scene, second, {HOG: 300_000_000, OTHER: 100_000_000}, 400_000_000, own)
    assert scene.book.share("web") == pytest.approx(share, rel=0.01)


def test_no_wait_has_no_share() -> None:
    scene = Scene()
    for second in range(5):
        feed(scene, second, {}, 0)
    assert scene.book.share("web") is None


def test_the_average_fades_within_minutes() -> None:
    scene = Scene()
    for second in range(60):
        feed(scene, second, {HOG: 300_000_000}, 300_000_000)
    before = scene.book.culprits[HOG]
    for _ in range(30):
        feed(scene, 59, {HOG: 300_000_000}, 300_000_000)
    assert scene.book.culprits[HOG] == pytest.approx(before / 2.718, rel=0.05)


def test_gains_in_place_and_by_name_agree() -> None:
    old = (Blame(WEB, HOG, True, 10), Blame(WEB, None, False, 5))
    new = (Blame(WEB, HOG, True, 15), Blame(WEB, None, False, 5), Blame(WEB, MOUSE, True, 2))
    expected = {(WEB, HOG, True, 5), (WEB, MOUSE, True, 2)}
    assert set(blame_gains(old, new)) == expected
    assert set(blame_gains(old, new[::-1])) == expected


def test_the_first_list_and_shrunken_counters_gain_nothing() -> None:
    assert blame_gains((), (Blame(WEB, HOG, True, 15),)) == []
    assert blame_gains((Blame(WEB, HOG, True, 15),), (Blame(WEB, HOG, True, 3),)) == []
    assert blame_gains((Blame(WEB, HOG, True, 15), Blame(WEB, MOUSE, True, 1)), ()) == []
