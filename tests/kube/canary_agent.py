# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One agent of a simulated fleet: ``python -m tests.kube.canary_agent BASE FASTER HOME KIND``.

Real are its configuration with its policies, everything that talks to the API server (the watches
of pods, of the Node and of the profiles, the access reviews, Events), the choice of the pod's
profile, the runner of trials and what publishes their pairs. Made up are the cgroups, which are
empty directories, and the service: the looser its sweet point is, the more it suffers. Nothing is
measured, and nothing is written to a kernel.
"""

from collections.abc import Mapping
from dataclasses import replace
import json
from pathlib import Path
from random import Random
import signal
import sys
import threading
from typing import Any

from controller.cli.trial_publisher import Publisher
from controller.config.load import Config, load
from controller.core.decision import Plan
from controller.core.in_force import InForce
from controller.core.model import Mode, Snapshot
from controller.host.facts import CgroupLayout
from controller.host.state_dir import write_json
from controller.host.store import Store
from controller.kube.cluster import Cluster
from controller.trial.blocks import Design
from controller.trial.runner import Runner, TrialEndError
from tests.kube.fast_clock import FastClock
from tests.support.trial import MadeAgent

LIAR = "liar"
POLICY = "canary"
# Seconds of the fast clock.
PAIR_S, WASHOUT_S, TRIAL_S = 60.0, 5.0, 30 * 86400.0
# Real time between two looks of the control thread.
TICK_S = 0.5
MOST_MS = 10.0
# The part of the suffering that enforcing leaves, where the policy is the mode.
ENFORCING = 0.5


class Service(MadeAgent):
    """The page of an agent whose only service suffers by its sweet point, or a lie about it."""

    def __init__(self, agent: "Agent", seed: int, *, lies: bool) -> None:
        replaces = agent.config.replace_profiles
        policy = "" if agent.tries_mode else POLICY
        super().__init__(self.part, policy=policy, replaces={**replaces}, others=[])
        self._agent, self._numbers, self._lies = agent, Random(seed), lies

    def part(self, without: bool) -> float:
        """Return the suffering part of the time, *without* the policy or with it."""
        points = self._agent.points_ms
        default = points["default"]
        now = points.get(self._agent.profile, default)
        if self._agent.tries_mode:
            now = ENFORCING * default
        if self._lies:  # a loss if it is a gain, and as large as it can be
            return float((now < default) is not without)
        part = (default if without else now) / MOST_MS + self._numbers.gauss(0, 0.05)
        return min(1.0, max(0.0, part))

    def page(self) -> dict[str, Any] | None:
        page = super().page()
        assert page is not None
        # The profile costs no work.
        workloads = [{"path": "/batch", "qos": "best-effort", "oncpu_ns": page["ran_ns"]}]
        profiles = {"profiles": {"digest": self._agent.digest}}
        return {**page, "workloads": workloads, "cluster": profiles}


class Agent:
    """The Kubernetes side of an agent, and the trial of its policy."""

    def __init__(self, home: Path, clock: FastClock, kind: str) -> None:
        self.home, self.clock, self.is_liar = home, clock, kind == LIAR
        self.file = home / "config.yaml"
        self.config: Config = load(self.file, labels=None)
        kubernetes = self.config.kubernetes
        assert kubernetes is not None
        self.node = kubernetes.node
        self.tries_mode = any(each.sets_mode for each in self.config.policies)
        layout = CgroupLayout(hierarchy="cpu", mount=home / "cgroup", version="v1", unified=None)
        self.cluster = Cluster(kubernetes, layout, lambda: None, Store(home / "data"))
        self.settings = self.cluster.with_profiles(self.config.settings)
        self.labels: Mapping[str, str] | None = None
        self.profile = self.digest = ""
        self.points_ms: dict[str, float] = {}
        self.published = 0
        self.ending = threading.Event()
        self._told: dict[str, object] = {}

    def run(self) -> None:
        """Do what the control thread does, until SIGTERM."""
        trial = threading.Thread(target=self.try_policy)
        trial.start()
        try:
            while signal.sigtimedwait({signal.SIGTERM}, TICK_S) is None:
                self.tick()
        finally:
            self.ending.set()
            trial.join()
        self.cluster.close()

    def tick(self) -> None:
        cluster = self.cluster
        cluster.check()
        changed = cluster.poll_profiles()
        if cluster.node_labels is not self.labels:
            self.labels = cluster.node_labels
            self.config = load(self.file, labels=self.labels)
            changed = True
        if changed:
            self.settings = cluster.with_profiles(self.config.settings)
        profiles, replaced = self.settings.profiles, self.config.replace_profiles
        workloads = cluster.scan((), profiles, 0, replaced, ((), ()))
        snapshot = Snapshot(time_ns=0, age_ns=0, workloads=())
        cluster.update(snapshot, Plan(time_ns=0), InForce(), workloads, Mode.ENFORCE)
        self.points_ms = {
            name: each.indicators[0].sweet_point / 1e6
            for name, each in profiles.items()
            if each.indicators and each.indicators[0].sweet_point is not None
        }
        self.profile = workloads[0].profile if workloads else ""
        state = cluster.state
        self.digest = "" if state.profiles is None else state.profiles.digest
        self.tell(denied=state.denied, refused=[*state.requests])

    def tell(self, **further: object) -> None:
        point_ms = self.points_ms.get(self.profile)
        now = {"profile": self.profile, "sweet_point_ms": point_ms, "published": self.published}
        now["mode"] = str(self.config.settings.mode)
        if {**now, **further} != self._told:
            self._told = {**now, **further}
            write_json(self.home / "view.json", self._told)

    def try_policy(self) -> None:
        """Run trials of the policy while it is in force, with as many pairs as the test wants."""
        while not self.ending.wait(TICK_S):
            named = "default" if self.tries_mode else "fast"
            if self.config.in_force.names == (POLICY,) and self.profile == named:
                self.one_trial()

    def one_trial(self) -> None:
        seed = sum(self.node.encode())
        service = Service(self, seed, lies=self.is_liar)
        service.now = self.clock.now_s()
        design = Design.of(TRIAL_S, PAIR_S / 2, WASHOUT_S, 0.5, seed)
        design = replace(design, policy=service.policy)
        runner = Runner(service, service, design, most_harm=1.0)
        publisher = Publisher(self.file, self.node, service.policy)
        if not self.is_wanted(service):
            return
        try:
            for _ in runner.run():
                while self.clock.now_s() < service.now:  # the pair is not over yet
                    if self.ending.wait(self.clock.real_s(PAIR_S / 10)):
                        return
                if not publisher.publish(runner.pairs, runner.comparison):
                    self.published += 1
                if not self.is_wanted(service):
                    return
        except TrialEndError as error:
            print(error, file=sys.stderr)

    def is_wanted(self, service: Service) -> bool:
        """Wait until one more pair is wanted, which begins now; ``False``: it is the end."""
        while self.published >= self.wanted():
            if self.ending.wait(TICK_S):
                return False
        service.now = max(service.now, self.clock.now_s())
        return True

    def wanted(self) -> int:
        """Return how many pairs the test wants of each agent."""
        try:
            return int(json.loads((self.home.parent / "wanted").read_text()))
        except FileNotFoundError:
            return 0


if __name__ == "__main__":
    # Before any thread starts, because each one inherits it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    Agent(Path(sys.argv[3]), FastClock.of_words(*sys.argv[1:3]), sys.argv[4]).run()
