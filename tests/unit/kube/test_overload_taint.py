# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions and the node's mark against a server that says yes, no, later, or nothing."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
from typing import Any

import pytest

from controller.config.sections.eviction import MarkEffect
from controller.core.decision import Eviction
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult
from controller.kube.cleanup import remove_overload_taint, remove_taint_note, write_taint_note
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.extended_resources import STAMP, NodeResources, remove_resources
from controller.kube.overload_taint import MARK, OverloadTaint, remove_taint
from controller.kube.pod_eviction import EvictionClient, Victim
from tests.api_stand_in import ApiStandIn, Asked, status

NODE = "/api/v1/nodes/n1"
EVICTION = "/api/v1/namespaces/jobs/pods/hog/eviction"
FOREIGN = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026"}
OURS = {"key": MARK, "effect": "PreferNoSchedule"}
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."
VICTIM = Victim(
    Eviction(
        cgroup=CgroupId("cpu", 7),
        name="jobs/hog",
        channel=Channel.CPU,
        service="shop/web@default",
        blame=0.5,
        reason="",
    ),
    namespace="jobs",
    name="hog",
    uid="u-1",
    grace_s=30,
    until_ns=100,
)


@pytest.fixture
def server() -> Iterator[ApiStandIn]:
    with ApiStandIn() as server:
        server.put(NODE, {"metadata": {"name": "n1"}, "spec": {"taints": [FOREIGN]}})
        yield server


@pytest.fixture
def api(server: ApiStandIn, tmp_path: Path) -> Api:
    return Api(server.kubeconfig(tmp_path / "kubeconfig"))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mark(api: Api, clock: Clock) -> OverloadTaint:
    mark = OverloadTaint(api, "n1", MarkEffect.PREFER_NO_SCHEDULE, 600.0, clock, clock)
    mark.expire()
    return mark


def node(server: ApiStandIn) -> tuple[list[Any], str | None]:
    found = server.objects[NODE]
    return found["spec"].get("taints", []), found["metadata"].get("annotations", {}).get(MARK)


def answer_to(server: ApiStandIn, code: int, message: str, *causes: str, **more: int) -> None:
    """Let the server refuse evictions, and nothing else."""

    def before(asked: Asked) -> tuple[int, dict[str, Any]] | None:
        return status(code, message, *causes, **more) if asked.path == EVICTION else None

    server.before = before


def evict(api: Api, mark: OverloadTaint) -> EvictionAnswer:
    return EvictionClient(api, mark, lambda: 99).evict(VICTIM)


def test_a_pod_is_asked_to_go_by_its_uid_and_the_node_marked_first(
    server: ApiStandIn, api: Api, mark: OverloadTaint
) -> None:
    found = evict(api, mark)
    assert (found.cgroup, found.channel, found.result) == (
        CgroupId("cpu", 7),
        Channel.CPU,
        EvictionResult.EVICTED,
    )
    assert found.wait_ns == 90 * 10**9
    patient = EvictionClient(api, mark, lambda: 0).evict(VICTIM._replace(grace_s=2**31 - 1))
    assert patient.wait_ns == 3600 * 10**9, "nobody keeps the others from being evicted for years"
    patch, post = (each for each in server.asked[:5] if each.method in ("PATCH", "POST"))
    assert (patch.method, patch.path) == ("PATCH", NODE)
    assert patch.content_type.startswith("application/merge-patch+json")
    assert post == ("POST", EVICTION, post.body, post.content_type)
    assert post.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": "jobs", "name": "hog"},
        "deleteOptions": {"preconditions": {"uid": "u-1"}},
    }
    assert node(server) == ([FOREIGN, OURS], "2023-11-14T22:23:20+00:00")


@pytest.mark.parametrize(
    ("code", "message", "causes", "result", "wait_s"),
    [
        (429, BUDGET, ("DisruptionBudget",), EvictionResult.REFUSED, 0),
        (500, "This pod has more than one PodDisruptionBudget, ...", (), EvictionResult.REFUSED, 0),
        (403, "denied by a policy", (), EvictionResult.REFUSED, 0),
        (422, "no", (), EvictionResult.REFUSED, 0),
        (404, 'pods "hog" not found', (), EvictionResult.GONE, 0),
        (409, "the UID in the precondition (u-1) does not match", (), EvictionResult.GONE, 0),
        (429, "Too many requests, please try again later.", (), EvictionResult.HELD, 7),
        (403, 'cannot create resource "pods/eviction"', (), EvictionResult.HELD, 300),
        (500, "etcdserver: leader changed", (), EvictionResult.HELD, 7),
        (503, "shutting down", (), EvictionResult.HELD, 7),
    ],
)
def test_every_no_means_something_else_and_leaves_no_mark(
    server: ApiStandIn,
    api: Api,
    mark: OverloadTaint,
    code: int,
    message: str,
    causes: tuple[str, ...],
    result: EvictionResult,
    wait_s: int,
) -> None:
    answer_to(server, code, message, *causes, retryAfterSeconds=7)
    found = evict(api, mark)
    assert (found.result, found.wait_ns) == (result, wait_s * 10**9)
    assert message[:20] in found.message
    assert len(server.asked_for("POST")) == 1, "asked once, not again and again"
    assert node(server) == ([FOREIGN], None)
    assert not mark.present


def test_a_refusal_leaves_the_mark_of_an_earlier_eviction(
    server: ApiStandIn, api: Api, mark: OverloadTaint
) -> None:
    assert evict(api, mark).result is EvictionResult.EVICTED
    answer_to(server, 429, BUDGET, "DisruptionBudget")
    assert evict(api, mark).result is EvictionResult.REFUSED
    assert node(server)[0] == [FOREIGN, OURS]


def test_an_answer_that_is_lost_is_no_no_and_the_mark_stays_its_time(
    server: ApiStandIn, api: Api, mark: OverloadTaint, clock: Clock
) -> None:
    server.before = lambda asked: (0, {}) if asked.method == "POST" else None
    assert evict(api, mark).result is EvictionResult.UNANSWERED
    mark.expire()
    assert node(server)[0] == [FOREIGN, OURS]
    clock.now_s += 600
    mark.expire()
    assert node(server) == ([FOREIGN], None)


def test_what_was_never_asked_is_held(tmp_path: Path, clock: Clock) -> None:
    with ApiStandIn() as gone:
        api = Api(gone.kubeconfig(tmp_path / "kubeconfig"))
    found = evict(api, OverloadTaint(api, "n1", MarkEffect.NONE, 600.0, clock, clock))
    assert found.result is EvictionResult.HELD
    assert "refused" in found.message


def test_a_mark_that_cannot_be_taken_back_is_taken_back_later(
    server: ApiStandIn, api: Api, mark: OverloadTaint
) -> None:
    def before(asked: Asked) -> tuple[int, dict[str, Any]] | None:
        if asked.method == "POST":
            return status(429, BUDGET, "DisruptionBudget")
        return (0, {}) if server.asked_for("POST") else None

    server.before = before
    found = evict(api, mark)
    assert found.result is EvictionResult.REFUSED and BUDGET in found.message
    assert node(server)[0] == [FOREIGN, OURS], "it could not be taken back"
    with pytest.raises(ApiUnreachable):
        mark.expire()
    server.before = lambda _: None
    mark.expire()
    assert node(server) == ([FOREIGN], None)


def test_what_could_not_be_asked_in_time_is_not_asked_any_more(
    server: ApiStandIn, api: Api, mark: OverloadTaint
) -> None:
    times = iter((99, 100, 100))  # marking takes too long, the next waited too long
    evictor = EvictionClient(api, mark, lambda: next(times))
    for _ in range(2):
        found = evictor.evict(VICTIM)
        assert (found.result, found.wait_ns) == (EvictionResult.HELD, 0)
        assert found.message == "the API server took so long that the evidence is old"
        assert node(server) == ([FOREIGN], None)
    assert server.asked_for("POST") == []


def test_an_agent_that_ends_evicts_nobody(
    server: ApiStandIn, api: Api, mark: OverloadTaint
) -> None:
    evictor = EvictionClient(api, mark, lambda: 0)
    evictor.close()
    assert evictor.evict(VICTIM).message == "the agent ends"
    assert not server.asked_for("POST") and not server.asked_for("PATCH")


def test_nobody_is_asked_to_go_when_the_node_cannot_be_marked(
    server: ApiStandIn, api: Api, mark: OverloadTaint
) -> None:
    server.before = lambda asked: status(403, "no") if asked.method == "PATCH" else None
    assert evict(api, mark).result is EvictionResult.HELD
    assert server.asked_for("POST") == []


def test_the_mark_ends_and_lasts_longer_with_every_eviction(
    server: ApiStandIn, mark: OverloadTaint, clock: Clock
) -> None:
    mark.set()
    clock.now_s += 500
    mark.set()
    clock.now_s += 500
    mark.expire()
    assert node(server)[0] == [FOREIGN, OURS]
    clock.now_s += 100
    mark.expire()
    assert node(server) == ([FOREIGN], None)
    asked = len(server.asked)
    mark.expire()
    assert len(server.asked) == asked, "there is nothing to do"


def test_a_date_that_is_set_back_makes_no_mark_last_longer(
    server: ApiStandIn, api: Api, clock: Clock
) -> None:
    dates = iter((1_700_000_000.0, 0.0, 0.0))
    mark = OverloadTaint(api, "n1", MarkEffect.NO_SCHEDULE, 600.0, clock, lambda: next(dates))
    mark.set()
    clock.now_s += 600
    mark.expire()
    assert node(server) == ([FOREIGN], None)


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"metadata": []},
        {"metadata": {"resourceVersion": 7}},
        {"metadata": {"resourceVersion": "7", "annotations": []}},
        {"metadata": {"resourceVersion": "7", "annotations": {MARK: 1, STAMP: 1}}},
        {"metadata": {"resourceVersion": "7"}, "spec": "x", "status": "x"},
        {"metadata": {"resourceVersion": "7"}, "spec": {"taints": {}}, "status": {"capacity": [1]}},
        {"metadata": {"resourceVersion": "7"}, "spec": {"taints": ["x"]}},
    ],
)
def test_what_is_no_node_is_no_reason_to_end(
    server: ApiStandIn, api: Api, mark: OverloadTaint, nonsense: dict[str, Any]
) -> None:
    server.before = lambda asked: (200, nonsense) if asked.method == "GET" else (200, {})
    evict(api, mark)
    resources = NodeResources(api, "n1")
    for act in (
        mark.set,
        mark.remove,
        lambda: remove_resources(api, "n1"),
        lambda: resources.publish({"sweetpoint.dev/cpu": 1}, 60.0),
    ):
        with contextlib.suppress(ApiUnreachable):
            act()


def test_the_mark_of_an_earlier_run_goes_at_the_start(
    server: ApiStandIn, api: Api, mark: OverloadTaint, clock: Clock
) -> None:
    mark.set()
    again = OverloadTaint(api, "n1", MarkEffect.NONE, 600.0, clock, clock)
    assert again.present
    again.expire()
    assert node(server) == ([FOREIGN], None)
    assert not again.present


def test_other_writers_lose_nothing(server: ApiStandIn, mark: OverloadTaint) -> None:
    others = [{"key": f"other-{number}", "effect": "NoSchedule"} for number in range(3)]

    def meddle(asked: Asked) -> None:
        if asked.method == "PATCH" and others:
            found = server.objects[NODE]
            taints = [*found["spec"]["taints"], others.pop()]
            server.put(NODE, {**found, "spec": {"taints": taints}})

    server.before = meddle
    mark.set()
    assert not others
    keys = {taint["key"] for taint in node(server)[0]}
    assert keys == {FOREIGN["key"], MARK, "other-0", "other-1", "other-2"}
    mark.remove()
    assert {taint["key"] for taint in node(server)[0]} == keys - {MARK}
    assert node(server)[0][0] == FOREIGN, "as it was, to the last field"


def test_a_node_that_always_changes_is_given_up(server: ApiStandIn, mark: OverloadTaint) -> None:
    server.before = lambda asked: status(409, "modified") if asked.method == "PATCH" else None
    with pytest.raises(ApiError):
        mark.set()
    assert len(server.asked_for("PATCH")) == 8


def test_a_mark_that_is_not_wanted_asks_nobody(server: ApiStandIn, api: Api, clock: Clock) -> None:
    mark = OverloadTaint(api, "n1", MarkEffect.NONE, 600.0, clock, clock)
    mark.set()
    assert server.asked == []


def test_unmark_says_whether_there_was_one(
    server: ApiStandIn, api: Api, mark: OverloadTaint
) -> None:
    mark.set()
    assert remove_taint(api, "n1")
    assert not remove_taint(api, "n1")
    assert not remove_taint(api, "gone")


def test_who_was_not_there_takes_the_mark_back(
    server: ApiStandIn, mark: OverloadTaint, tmp_path: Path
) -> None:
    assert remove_overload_taint(tmp_path) == (True, "")
    mark.set()
    write_taint_note(tmp_path, "n1", tmp_path / "kubeconfig")
    server.before = lambda _: (0, {})
    done, text = remove_overload_taint(tmp_path)
    assert not done and text.startswith("node n1: the mark may still be there: ")
    server.before = lambda _: None
    assert remove_overload_taint(tmp_path) == (True, "node n1: the mark is taken back")
    assert node(server) == ([FOREIGN], None)
    assert remove_overload_taint(tmp_path) == (True, ""), "the note is gone with it"
    write_taint_note(tmp_path, "n1", tmp_path / "kubeconfig")
    assert remove_overload_taint(tmp_path) == (True, "node n1: the mark is not there")
    write_taint_note(tmp_path, "n1", None)
    remove_taint_note(tmp_path)
    remove_taint_note(tmp_path)
    (tmp_path / "node-mark.json").write_text("{")
    assert not remove_overload_taint(tmp_path)[0]
