# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How many requests an agent makes: counted at a simulated server, in hours of simulated time."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
import re
import threading
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from controller.cli.trial_publisher import Publisher
from controller.config.sections.eviction import KubeEvictionConfig
from controller.config.sections.kubernetes import KubernetesConfig
from controller.config.sections.kubernetes_capacity import KubeCapacityConfig
from controller.config.sections.kubernetes_profiles import KubeProfilesConfig
from controller.core.decision import Plan
from controller.core.in_force import InForce
from controller.core.model import Mode, Snapshot
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.store import Store
from controller.kube.client.api import _SILENCE, Limits
from controller.kube.client.watch import _LIST_AFTER
from controller.kube.cluster import Cluster
from controller.trial.comparison import Comparison
from tests.support.kube.api_stand_in import ApiStandIn, Asked
from tests.support.kube.limits import PATIENT
from tests.support.kube.virtual_time import VirtualTime
from tests.support.loops.closed_loop import make_settings
from tests.support.rollout import CURRENT, pairs_from
from tests.support.waiting import DEADLINE_S, eventually

NODE, MAP = "/api/v1/nodes/n1", "/api/v1/namespaces/ns/configmaps/profiles"
HOUR_S = 3600
# The most that an agent may ask in a second without changes.
MOST_PER_S = 0.05
# Of the pods, the Node and the ConfigMap.
WATCHES = 3
# Between two looks of the control thread; the worker checks the capacity as often.
STEP_S = 5


class Site:
    """The Kubernetes side of an agent, its server, and what the control thread calls."""

    def __init__(self, directory: Path, server: ApiStandIn, *, everything: bool) -> None:
        self.server, self.clock = server, VirtualTime()
        self.directory = directory
        self.changes: list[dict[str, Any]] = []
        self.counted = 0  # the requests of all runs so far
        self.config = KubernetesConfig(
            node="n1",
            kubeconfig=server.kubeconfig(directory / "kubeconfig"),
            system_namespaces=(),
            trusted_namespaces=(),
            cgroup_roots=("/kubepods",),
            eviction=KubeEvictionConfig(enabled=everything),
            capacity=KubeCapacityConfig(enabled=everything),
            profiles=KubeProfilesConfig(config_map=("ns", "profiles")),
        )
        server.put(NODE, {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "4"}}})
        server.put(MAP, {"metadata": {"namespace": "ns", "name": "profiles"}, "data": {}})
        server.before, server.watch = self.answer, self.watch

    def answer(self, asked: Asked) -> tuple[int, dict[str, Any]] | None:
        path = urlsplit(asked.path).path
        lists = {
            "/api/v1/pods": [],
            "/api/v1/nodes": [self.server.objects[NODE]],
            MAP.rpartition("/")[0]: [self.server.objects[MAP]],
        }
        if path in lists:
            return 200, {"metadata": {"resourceVersion": "1"}, "items": lists[path]}
        if path.endswith("/selfsubjectaccessreviews"):
            return 201, {"status": {"allowed": True}}
        if path.endswith("/status"):
            return 200, self.server._act(asked._replace(path=NODE))[1]
        return None

    def watch(self, asked: Asked) -> Iterator[dict[str, Any]]:
        """Send changes of the ConfigMap until the time that was asked for has passed."""
        query = parse_qs(urlsplit(asked.path).query)
        end_s = self.clock.monotonic() + int(query["timeoutSeconds"][0])
        is_map = "/configmaps?" in asked.path
        while (left_s := end_s - self.clock.monotonic()) > 0:
            self.clock.wait(left_s, lambda: is_map and bool(self.changes))
            if is_map and self.changes:
                yield {"type": "MODIFIED", "object": self.changes.pop(0)}
            if self.clock.ended:
                return

    def start(self) -> None:
        layout = CgroupLayout(
            hierarchy="v2", mount=self.directory, version="v2", unified=self.directory
        )
        self.cluster = Cluster(self.config, layout, lambda: None, Store(self.directory / "data"))
        self.settings = make_settings()
        self.system_ns = 0

    def run(self, seconds: int) -> Counter[str]:
        """Return the requests since the last run, or the start, by what they are."""
        for _ in range(seconds // STEP_S):
            self.tick()
            self.clock.advance(STEP_S, WATCHES)
        self.turn()
        before, self.counted = self.counted, len(self.server.asked)
        return Counter(map(named, self.server.asked[before : self.counted]))

    def tick(self) -> None:
        cluster, now_ns = self.cluster, self.clock.monotonic_ns()
        cluster.check()
        cluster.poll_profiles()
        settings = cluster.with_profiles(self.settings)
        workloads = cluster.scan((), settings.profiles, now_ns, {}, ((), ()))
        self.system_ns += STEP_S * NS_PER_SEC // 100
        snapshot = Snapshot(time_ns=now_ns, age_ns=0, workloads=(), system_oncpu_ns=self.system_ns)
        cluster.update(snapshot, Plan(time_ns=now_ns), InForce(), workloads, Mode.ENFORCE)
        self.turn()

    def change(self, config_map: dict[str, Any]) -> None:
        """Send *config_map* to the watch."""
        self.changes.append(config_map)
        self.clock.wake()
        eventually("the profiles", self.profiles)

    def profiles(self) -> list[str]:
        """Return the names of the profiles that the watch has seen."""
        state = self.cluster.state.profiles
        return [] if state is None else [*state.profiles]

    def turn(self) -> None:
        """Wait until the worker has done what is due."""
        done = threading.Event()
        assert self.cluster._worker.submit(done.set)
        assert done.wait(DEADLINE_S)


def named(asked: Asked) -> str:
    """Return the verb of a request with what it is about."""
    path = urlsplit(asked.path).path
    kind = re.sub(r"(?<=/nodes/)n1|(?<=/events/).*", "NAME", path).removeprefix("/api/v1/")
    kind = kind.removeprefix("/apis/").removeprefix("namespaces/ns/")
    verb = {"GET": "get" if kind.startswith("nodes/") else "list", "POST": "create"}
    if "watch=1" in asked.path:
        return f"watch {kind}"
    return f"{verb.get(asked.method, asked.method.lower())} {kind}"


@pytest.fixture
def site(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    with ApiStandIn() as server:
        site = Site(tmp_path, server, everything=request.param)
        site.clock.install(monkeypatch)
        monkeypatch.setattr("controller.kube.client.watch.Random", lambda: Random(1))
        monkeypatch.setattr("controller.kube.client.api.Limits", lambda: PATIENT)
        site.start()
        yield site
        site.clock.end()
        site.cluster.close()


WITH_ALL = pytest.mark.parametrize("site", [True], indirect=True)
BY_DEFAULT = pytest.mark.parametrize("site", [False], indirect=True)
BETWEEN = range(HOUR_S // 600, HOUR_S // 300 + 1)  # watches that last 5 to 10 minutes


def of_watches(found: Counter[str]) -> dict[str, int]:
    """Return the watches of an hour, which are taken out of *found*."""
    return {name: found.pop(name) for name in [*found] if name.startswith("watch ")}


@WITH_ALL
def test_the_start(site: Site) -> None:
    assert site.run(20) == {
        "list pods": 1,
        "list nodes": 1,
        "list configmaps": 1,
        "watch pods": 1,
        "watch nodes": 1,
        "watch configmaps": 1,
        # For a taint and resources of an earlier run, and for the first capacity.
        "get nodes/NAME": 2,
        "patch nodes/NAME/status": 1,
        "create authorization.k8s.io/v1/selfsubjectaccessreviews": 4,
    }


@WITH_ALL
def test_an_hour_with_every_function(site: Site) -> None:
    site.run(HOUR_S)  # until the capacity stays as it is
    found = site.run(HOUR_S)
    assert sum(found.values()) <= MOST_PER_S * HOUR_S
    watches = of_watches(found)
    assert len(watches) == WATCHES
    assert all(number in BETWEEN for number in watches.values())
    assert found == {
        "create authorization.k8s.io/v1/selfsubjectaccessreviews": 24,
        # The heartbeat of the capacity.
        "get nodes/NAME": 6,
        "patch nodes/NAME/status": 6,
    }


@BY_DEFAULT
def test_an_hour_by_default(site: Site) -> None:
    site.run(60)
    found = site.run(HOUR_S)
    assert len(of_watches(found)) == WATCHES
    assert found == {"create authorization.k8s.io/v1/selfsubjectaccessreviews": 6}


@BY_DEFAULT
def test_a_promotion_costs_one_event(site: Site) -> None:
    site.run(60)
    meta = {"namespace": "ns", "name": "profiles", "resourceVersion": "7"}
    site.change({"metadata": meta, "data": {"default.yaml": CURRENT}})
    found = site.run(60)
    assert site.profiles() == ["default"]
    assert found == {"create events.k8s.io/v1/namespaces/ns/events": 1}


def after_one_event(agents: int, silence: tuple[float, float]) -> Counter[int]:
    """Return the requests by second of an hour after an event that reaches *agents* at once.

    It is the schedule of one watch of each, whose kind does not change any more. *silence*: the
    parts of its longest silence, at random.
    """
    random, found = Random(1), Counter[int]()
    for _ in range(agents):
        now_s, silences = 0.0, 0
        while now_s < HOUR_S:
            now_s += Limits().silence_s * random.uniform(*silence) + random.uniform(0, 1)
            silences += 1
            found[int(now_s)] += 2 if silences % _LIST_AFTER == 0 else 1
    return found


def test_five_thousand_agents_do_not_ask_together() -> None:
    found, together = after_one_event(5000, _SILENCE), after_one_event(5000, (1.0, 1.0))
    assert found.total() / HOUR_S / 5000 <= 0.015
    most, later = max(found.values()), max(found[second] for second in range(1800, HOUR_S))
    print(most, later, max(together.values()))
    assert most <= 500 and later <= 200
    assert max(together.values()) > 5000


@BY_DEFAULT
def test_what_a_rollout_says_of_policies_is_added_to_the_labels(site: Site) -> None:
    site.run(20)
    before = site.cluster.node_labels
    assert before == {}
    site.run(20)
    assert site.cluster.node_labels is before  # the agent compares by identity
    annotations = {"sweetpoint.dev/policies": '{"canary": "everywhere"}'}
    meta = {"namespace": "ns", "name": "profiles", "resourceVersion": "7"}
    site.change(
        {"metadata": {**meta, "annotations": annotations}, "data": {"default.yaml": CURRENT}}
    )
    assert site.cluster.node_labels == {"rollout.sweetpoint.dev/canary": "everywhere"}


@BY_DEFAULT
def test_a_pair_of_a_trial_costs_a_read_and_a_write(site: Site, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"kubernetes: {{node: n1, kubeconfig: {site.config.kubeconfig}}}\n")
    site.run(20)
    before = len(site.server.asked)
    assert Publisher(config, "n1", "").publish(pairs_from(1.8e9, 64), Comparison()) == ""
    found = Counter(map(named, site.server.asked[before:]))
    assert (found["get nodes/NAME"], found["patch nodes/NAME"]) == (1, 1)
