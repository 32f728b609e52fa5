# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The controller at a simulated API server: whose writes fail at each place."""

from collections.abc import Iterator
import json
from pathlib import Path
from typing import Any

import pytest

from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError
from controller.kube.client.worker import Worker
from controller.kube.events import Events
from controller.kube.lease import Lease
from controller.kube.policy_reaches import REACHES_KEY
from controller.rollout.controller import ROLL_BACK_KEY, Controller
from controller.rollout.loop import Loop
from controller.rollout.metrics import RolloutCollector
from controller.rollout.state import Phase
from controller.rollout.summary import TRIAL_KEY, Trial, encode
from controller.telemetry.metrics.text import page
from tests.support.kube.api_stand_in import ApiStandIn, Asked, status
from tests.support.rollout import CANDIDATE, CURRENT, SPEC, pairs_from, tried
from tests.support.waiting import eventually

MAPS = "/api/v1/namespaces/ns/configmaps"
ROLLOUT, PROFILES = f"{MAPS}/rollout", f"{MAPS}/profiles"
NOW_S = 1.8e9


@pytest.fixture
def server() -> Iterator[ApiStandIn]:
    with ApiStandIn() as server:
        server.put(ROLLOUT, {"metadata": {"uid": "u1"}, "data": {"rollout.yaml": SPEC}})
        server.put(PROFILES, {"data": {"default.yaml": CURRENT, "fast.yaml": CANDIDATE}})
        yield server


class Site:
    """Canary nodes, one node of another pool, and a controller."""

    def __init__(self, server: ApiStandIn, directory: Path) -> None:
        self.server = server
        self.api = Api(server.kubeconfig(directory / "kubeconfig"))
        self.worker = Worker(self.api)
        self.now_s = NOW_S
        self.passed_s = 0.0
        self.refuse: dict[str, int] = {}  # how many patches of a path fail
        self.annotations = dict.fromkeys(("n1", "n2", "n3"), "")
        server.before = self.before
        self.start()

    def start(self) -> None:
        """Start a controller, which knows only what is stored."""
        events = Events(self.api, self.worker, "controller")
        self.controller = Controller(self.api, events, "ns", "rollout", "profiles")

    def before(self, asked: Asked) -> tuple[int, dict[str, Any]] | None:
        if asked.path.startswith("/api/v1/nodes?"):
            assert "labelSelector=pool%3Dcanary" in asked.path
            return 200, {"metadata": {"resourceVersion": "1"}, "items": self.nodes()}
        if asked.method == "PATCH" and self.refuse.get(asked.path):
            self.refuse[asked.path] -= 1
            return status(409, "modified")
        return None

    def nodes(self) -> list[dict[str, Any]]:
        labels = {name: {"pool": "canary"} for name in self.annotations} | {"other": {}}
        text = dict.fromkeys(labels, encode(tried(pairs_from(0.0, 20)))) | self.annotations
        return [
            {"metadata": {"name": name, "labels": own, "annotations": {TRIAL_KEY: text[name]}}}
            for name, own in labels.items()
        ]

    def measure(self, less: float = 0.3) -> None:
        for number, name in enumerate(self.annotations):
            pairs = pairs_from(self.now_s + 1, 10, seed=number, less=less)
            self.annotations[name] = encode(tried(pairs))
        self.now_s += 700

    def look(self, passed_s: float = 0.0) -> Phase | None:
        self.controller.look(self.now_s, passed_s)
        return None if self.controller.state is None else self.controller.state.phase

    def data(self, path: str) -> dict[str, str]:
        found: dict[str, str] = self.server.objects[path]["data"]
        return found

    def events(self) -> list[str]:
        done: list[bool] = []
        self.worker.submit(lambda: done.append(True))
        eventually("the worker", lambda: bool(done))
        found = [body for path, body in self.server.objects.items() if "/events/" in path]
        assert all(each["regarding"]["uid"] == "u1" for each in found)
        return [each["reason"] for each in found]


@pytest.fixture
def site(server: ApiStandIn, tmp_path: Path) -> Iterator[Site]:
    site = Site(server, tmp_path)
    yield site
    site.worker.close()
    assert site.worker.failure is None


def test_a_rollout_from_its_begin_to_the_promotion(site: Site) -> None:
    assert [site.look(), site.look()] == [Phase.PENDING, Phase.CANARY]
    site.measure()
    assert site.look() is Phase.SOAKING
    assert site.look(599.0) is Phase.SOAKING
    site.measure()
    assert site.look(1.0) is Phase.PROMOTED
    assert "3ms" in site.data(PROFILES)["default.yaml"]
    assert site.events() == ["RolloutPending", "RolloutCanary", "RolloutSoaking", "RolloutPromoted"]
    assert site.data(ROLLOUT)["rollout.yaml"] == SPEC
    before = {**site.server.objects}
    site.look()
    assert site.server.objects == before


@pytest.mark.parametrize("path", [ROLLOUT, PROFILES])
@pytest.mark.parametrize("less", [0.3, -0.3])
def test_refused_writes_are_made_by_the_next_controller(site: Site, path: str, less: float) -> None:
    steps = 0
    while (state := site.controller.state) is None or not state.applied:
        assert (steps := steps + 1) < 20
        site.refuse[path] = 1
        wanted = len(site.server.asked_for("PATCH"))
        try:
            site.look()
        except ApiError as error:
            assert error.status == 409
            site.start()
            site.look()
        assert len(site.server.asked_for("PATCH")) > wanted
        site.refuse.clear()
        site.measure(less)
        if state is not None and state.phase is Phase.SOAKING:
            site.look(600.0)
    end = Phase.PROMOTED if less > 0 else Phase.ROLLED_BACK
    assert state.phase is end
    assert ("3ms" in site.data(PROFILES)["default.yaml"]) is (end is Phase.PROMOTED)
    assert ("fast.yaml" in site.data(PROFILES)) is (end is Phase.PROMOTED)


def promote(site: Site) -> None:
    site.look(), site.look()
    site.measure()
    site.look()
    site.measure()
    assert site.look(600.0) is Phase.PROMOTED


def ask(site: Site) -> None:
    site.server.objects[ROLLOUT]["metadata"]["annotations"] = {ROLL_BACK_KEY: "yes", "other": "x"}


@pytest.mark.parametrize("refused", [None, ROLLOUT, PROFILES])
def test_a_promotion_is_undone_if_a_person_asks(site: Site, refused: str | None) -> None:
    promote(site)
    ask(site)
    if refused is not None:  # as if the controller were killed there
        site.refuse[refused] = 1
        with pytest.raises(ApiError):
            site.look()
        site.start()
    assert site.look() is Phase.ROLLED_BACK
    assert site.data(PROFILES) == {"default.yaml": CURRENT}
    assert site.server.objects[ROLLOUT]["metadata"]["annotations"] == {"other": "x"}
    state = site.controller.state
    assert state is not None and state.applied
    assert (state.conditions[0].reason, state.conditions[1].status) == ("Asked", "False")
    assert site.events()[-2:] == ["RolloutPromoted", "RolloutRolledBack"]
    before = {**site.server.objects}
    site.look()
    assert site.server.objects == before


def test_a_promoted_profile_that_was_not_there_before_is_removed(site: Site) -> None:
    site.server.put(PROFILES, {"data": {"fast.yaml": CANDIDATE}})
    promote(site)
    assert "default.yaml" in site.data(PROFILES)
    ask(site)
    site.look()
    assert site.data(PROFILES) == {}


def test_a_profile_that_was_changed_after_the_promotion_stays(site: Site) -> None:
    promote(site)
    by_hand = CURRENT.replace("5ms", "4ms")
    data = {**site.data(PROFILES), "default.yaml": by_hand}
    site.server.put(PROFILES, {"data": data})
    ask(site)
    assert site.look() is Phase.ROLLED_BACK
    assert site.data(PROFILES) == {"default.yaml": by_hand}


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_candidate_is_given_up_if_a_person_asks(site: Site, looks: int) -> None:
    for _ in range(looks):
        site.look()
    ask(site)
    assert site.look() is Phase.ROLLED_BACK
    assert site.data(PROFILES) == {"default.yaml": CURRENT}
    # Nobody asked for that of the next one.
    data = {"default.yaml": CURRENT, "fast.yaml": CANDIDATE.replace("3ms", "2ms")}
    site.server.put(PROFILES, {"data": data})
    assert [site.look(), site.look()] == [Phase.PENDING, Phase.CANARY]


def test_a_request_without_a_candidate_is_told_and_is_not_kept(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    promote(site)
    site.server.put(PROFILES, {"data": {"default.yaml": site.data(PROFILES)["default.yaml"]}})
    ask(site)
    assert [site.look(), site.look()] == [Phase.PROMOTED, Phase.PROMOTED]
    assert caplog.text.count("the profiles have no candidate to roll back") == 1


POLICY_SPEC = SPEC.replace(
    "candidate: fast\nreplaces: default", "policy: {name: canary, set: {reserve: 0cpu}}"
)


def of_policy(site: Site, spec: str = POLICY_SPEC, reaches: str | None = None) -> None:
    """Make the candidate a policy, whose trials the nodes publish from now on."""
    assert "policy" in spec
    site.server.put(ROLLOUT, {"metadata": {"uid": "u1"}, "data": {"rollout.yaml": spec}})
    meta = {} if reaches is None else {"annotations": {REACHES_KEY: reaches}}
    site.server.put(PROFILES, {"metadata": meta, "data": {"default.yaml": CURRENT}})


def measure_policy(site: Site, less: float, also: tuple[str, ...] = ("reserve=0cpu",)) -> None:
    for number, name in enumerate(site.annotations):
        pairs = pairs_from(site.now_s + 1, 10, seed=number, less=less)
        site.annotations[name] = encode(Trial(pairs=pairs, policy="canary", also=also))
    site.now_s += 700


def reaches(site: Site) -> object:
    annotations = site.server.objects[PROFILES]["metadata"].get("annotations", {})
    return json.loads(annotations.get(REACHES_KEY) or "{}")


def test_a_policy_that_gains_is_put_in_force_everywhere(site: Site) -> None:
    of_policy(site, reaches='{"other": "everywhere"}')
    assert [site.look(), site.look()] == [Phase.PENDING, Phase.CANARY]
    measure_policy(site, 0.3)
    assert site.look() is Phase.SOAKING
    assert reaches(site) == {"other": "everywhere"}
    measure_policy(site, 0.3)
    assert site.look(600.0) is Phase.PROMOTED
    assert reaches(site) == {"other": "everywhere", "canary": "everywhere"}
    assert site.data(PROFILES) == {"default.yaml": CURRENT}
    ask(site)
    assert site.look() is Phase.ROLLED_BACK
    assert reaches(site) == {"other": "everywhere", "canary": "nowhere"}
    before = {**site.server.objects}
    site.look()
    assert site.server.objects == before


def test_a_policy_that_hurts_is_put_out_of_force_until_another_one_is_tried(site: Site) -> None:
    of_policy(site)
    site.look(), site.look()
    measure_policy(site, -0.3)
    assert site.look() is Phase.ROLLED_BACK
    assert reaches(site) == {"canary": "nowhere"}
    spec = POLICY_SPEC.replace("0cpu", "1cpu")
    data = {**site.data(ROLLOUT), "rollout.yaml": spec}
    site.server.put(ROLLOUT, {"metadata": {"uid": "u1"}, "data": data})
    assert site.look() is Phase.PENDING
    assert reaches(site) == {}
    site.look()
    measure_policy(site, 0.3)  # still of the one before
    assert site.look() is Phase.CANARY
    assert site.controller.state is not None
    assert site.controller.state.nodes["left out"] == 3
    measure_policy(site, 0.3, ("reserve=1cpu",))
    assert site.look() is Phase.SOAKING


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ('{"canary": "everywhere"}', "in force on all nodes by an earlier rollout"),
        ('{"canary": "there"}', "must be like"),
        ("[1]", "must be like"),
    ],
)
def test_reaches_that_another_wrote_stop_the_rollout(site: Site, before: str, problem: str) -> None:
    of_policy(site, reaches=before)
    site.look()
    assert problem in site.controller.problem
    assert not site.server.asked_for("PATCH")[1:]  # but that of the state
    assert site.server.objects[PROFILES]["metadata"]["annotations"][REACHES_KEY] == before


def test_a_policy_that_is_in_force_everywhere_is_not_judged_again(site: Site) -> None:
    everywhere = '{"canary": "everywhere"}'
    of_policy(site, reaches=everywhere)
    for _ in range(3):
        site.look(86400.0)
    assert site.controller.state is None
    assert not site.server.asked_for("PATCH")
    assert json.loads(everywhere) == reaches(site)


def test_no_reach_is_added_that_agents_would_refuse(site: Site) -> None:
    most = {f"p{number}": "nowhere" for number in range(16)}
    of_policy(site, reaches=json.dumps(most))
    site.look()
    assert "has 16 policies, the most" in site.controller.problem
    assert (site.controller.state, reaches(site)) == (None, most)
    del most["p0"]
    of_policy(site, reaches=json.dumps(most))
    assert site.look() is Phase.PENDING


def test_the_same_candidate_promoted_again_does_not_replace_what_is_kept(site: Site) -> None:
    promote(site)
    longer = site.data(ROLLOUT)["rollout.yaml"] + "\n# again"
    data = {**site.data(ROLLOUT), "rollout.yaml": longer}
    site.server.put(ROLLOUT, {"metadata": {"uid": "u1"}, "data": data})
    promote(site)
    ask(site)
    assert site.look() is Phase.ROLLED_BACK
    assert site.data(PROFILES) == {"default.yaml": CURRENT}


def test_a_candidate_without_a_verdict_leaves_what_was_promoted_before(site: Site) -> None:
    promote(site)
    promoted = site.data(PROFILES)["default.yaml"]
    longer = site.data(ROLLOUT)["rollout.yaml"] + "\n# again"
    data = {**site.data(ROLLOUT), "rollout.yaml": longer}
    site.server.put(ROLLOUT, {"metadata": {"uid": "u1"}, "data": data})
    for _ in range(100):
        if site.look(86400.0) is Phase.ROLLED_BACK:
            break
    assert site.controller.state is not None
    assert site.controller.state.phase is Phase.ROLLED_BACK
    assert site.data(PROFILES) == {"default.yaml": promoted}


def test_a_request_before_there_was_any_candidate_does_not_end_the_next_one(site: Site) -> None:
    site.server.put(PROFILES, {"data": {"default.yaml": CURRENT}})
    ask(site)
    site.look()
    assert ROLL_BACK_KEY not in site.server.objects[ROLLOUT]["metadata"]["annotations"]
    site.server.put(PROFILES, {"data": {"default.yaml": CURRENT, "fast.yaml": CANDIDATE}})
    assert [site.look(), site.look()] == [Phase.PENDING, Phase.CANARY]


def test_a_profile_that_changes_meanwhile_is_not_overwritten(site: Site) -> None:
    site.look(), site.look()
    site.measure()
    site.look()
    site.measure()
    real = site.server.before

    def edits(asked: Asked) -> tuple[int, dict[str, Any]] | None:
        if asked.method == "PATCH" and asked.path == PROFILES:
            site.server.before = real
            data = {**site.data(PROFILES), "fast.yaml": CANDIDATE.replace("3ms", "4ms")}
            site.server.put(PROFILES, {"data": data})
        return real(asked)

    site.server.before = edits
    with pytest.raises(ApiError, match="409"):
        site.look(600.0)
    assert site.data(PROFILES)["default.yaml"] == CURRENT
    assert site.look() is Phase.PENDING  # the other candidate


@pytest.mark.parametrize(
    ("path", "data", "problem"),
    [
        (ROLLOUT, {}, "has no rollout.yaml"),
        (ROLLOUT, {"rollout.yaml": SPEC + "least_nodes: 2\n"}, "least_nodes"),
        (ROLLOUT, {"rollout.yaml": SPEC.replace("default", "fast")}, "same profile"),
        (ROLLOUT, {"rollout.yaml": SPEC, "status.json": "{}"}, "status.json is damaged"),
        (PROFILES, {"fast.yaml": "name: slow\n"}, "fast.yaml"),
    ],
)
def test_a_mistake_stops_the_rollout_until_it_is_corrected(
    site: Site, path: str, data: dict[str, str], problem: str
) -> None:
    good = {**site.data(path)}
    site.server.put(path, {"data": data})
    assert site.look() is None
    assert problem in site.controller.problem
    assert not site.server.asked_for("PATCH")
    site.server.put(path, {"metadata": {"uid": "u1"}, "data": good})
    assert site.look() is Phase.PENDING
    assert site.controller.problem == ""


def test_a_hostile_annotation_is_no_verdict(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.look(), site.look()
    site.measure()
    site.annotations["n2"] = '[2,{"policy":"\x1b[31m"},[]]'
    assert site.look() is Phase.CANARY
    assert site.controller.state is not None
    assert site.controller.state.nodes == {
        "worse": 0,
        "no difference shown": 0,
        "better": 2,
        "not judged": 0,
        "left out": 1,
    }
    assert "1 node left out: not a summary" in site.controller.state.conditions[0].message
    site.look(), site.look()
    assert caplog.text.count("of 1 node is left out (n2): not a summary of a trial") == 1
    assert "\x1b" not in caplog.text


def test_trials_without_the_candidate_promote_nothing_and_are_told(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.look(), site.look()
    site.measure()
    paused = encode(Trial(pairs=pairs_from(site.now_s - 600, 10)))
    site.annotations |= {"n1": paused, "n2": paused, "n3": "[1,[]]"}
    for _ in range(3):
        assert site.look(600.0) is Phase.CANARY
    state = site.controller.state
    assert state is not None
    assert (state.nodes["better"], state.nodes["left out"]) == (0, 3)
    notes = [
        body["note"]
        for body in site.server.objects.values()
        if body.get("reason") == "RolloutTrialsLeftOut"
    ]
    assert site.events() == ["RolloutPending", "RolloutCanary", "RolloutTrialsLeftOut"]
    assert caplog.text.count("of 2 nodes is left out (n1, n2): the trial compared enforcing") == 1
    assert caplog.text.count("of 1 node is left out (n3): an older agent wrote it") == 1
    assert [note.count(" left out: ") for note in notes] == [2]


def test_a_node_that_changes_its_annotation_all_the_time_uses_up_no_events(site: Site) -> None:
    site.look(), site.look()
    for number in range(40):
        site.annotations["n1"] = "[1,[]]" if number % 2 else "x"
        site.look()
    assert site.events() == ["RolloutPending", "RolloutCanary", "RolloutTrialsLeftOut"]


def test_a_look_asks_six_times(site: Site) -> None:
    now = [0.0]
    lease = Lease(site.api, "ns", "rollout", "only", lambda: now[0])
    loop = Loop(site.controller, lease, lambda: now[0], lambda: site.now_s)
    for _ in range(3):
        loop.once()
        now[0] += 20
    before = len(site.server.asked)
    loop.once()
    found = [(asked.method, asked.path.partition("?")[0]) for asked in site.server.asked[before:]]
    path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/rollout"
    reads = [("GET", each) for each in (ROLLOUT, PROFILES, "/api/v1/nodes")]
    # The last one keeps how long the phase was watched.
    assert found == [("GET", path), ("PATCH", path), *reads, ("PATCH", ROLLOUT)]


def test_only_the_holder_of_the_lease_looks(site: Site) -> None:
    now = [0.0]

    def loop(holder: str) -> Loop:
        lease = Lease(site.api, "ns", "rollout", holder, lambda: now[0])
        return Loop(site.controller, lease, lambda: now[0], lambda: site.now_s)

    first, second = loop("first"), loop("second")
    for _ in range(3):
        first.once()
        second.once()
        now[0] += 20
    assert (first.leads, second.leads) == (True, False)
    assert site.controller.state is not None
    assert site.controller.state.phase is Phase.CANARY
    assert site.controller.state.in_phase_s == 20.0
    now[0] += 10_000  # nobody looked meanwhile
    first.once()
    assert site.controller.state.in_phase_s == 60.0
    text = page(RolloutCollector(first.seen).collect()).decode()
    assert 'sweetpoint_rollout_phase{phase="Canary"} 1.0' in text
    assert 'sweetpoint_rollout_nodes{verdict="not judged"} 3.0' in text
    other = page(RolloutCollector(second.seen).collect()).decode()
    assert "sweetpoint_rollout_leader 0.0" in other
    assert "phase" not in other
    first.run(lambda _: True)
    assert not first.leads
    second.once()
    assert second.leads
