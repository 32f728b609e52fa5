# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The phases of the demonstration on a simulated node, for hosts that lack a requirement.

The planner and the profile are the real ones. The node is a seeded model, so the numbers show
the behaviour of the control and nothing about this host. The latency of a request is a fixed time
plus one exponential wait with the node's run-queue p99.
"""

from collections.abc import Sequence
import dataclasses
import math
from pathlib import Path
import random
import tempfile

from controller.config.load import load
from controller.core.decision import Outcome
from controller.core.model import Knob, Mode
from controller.core.planner import Planner
from controller.core.settings import Settings
from controller.core.units import NS_PER_SEC, NS_PER_US
from controller.demo.agent import PROFILE, parse_status, write_config
from controller.demo.phases import PhaseSpec
from controller.demo.results import LoadSecond, Phase, Run, Sample, Work
from controller.demo.simulated_node import Plant, SimulatedNode

__all__ = ("simulate",)

CPUS = 2
SEED = 1
SERVICE_US = 120.0
REQUESTS = 300  # latencies drawn per second for the percentiles
# An encoding has a few busy threads and causes shorter waits than many threads and forks.
PLANTS = {"stress-ng": Plant(cpus=CPUS), "ffmpeg": Plant(cpus=CPUS, p99_ns=5e5)}


def simulate(plan: Sequence[PhaseSpec], missing: Sequence[str]) -> Run:
    """Run *plan* on the model, in about a second; *missing* are the reasons, for the notes."""
    phases: list[Phase] = []
    node: _Node | None = None
    for spec in plan:
        if node is None or spec.loop_sweet_point is None or phases[-1].key[:4] != "loop":
            # Each round is another draw, so that the rounds scatter as real ones do.
            node = _Node(spec, SEED + sum(phase.key == spec.key for phase in phases))
        else:
            node.change(spec)
        phases.append(node.run(spec))
    notes = (
        "SIMULATED on a model of a host with two CPUs; only the planner and the profile are real.",
        *(f"Not the real programs: {reason}." for reason in missing),
        "Batch work is the CPU time of best-effort work in the model.",
    )
    environment = (("host", "simulated node, 2 CPUs"), ("seed", str(SEED)))
    return Run(simulated=True, environment=environment, notes=notes, phases=tuple(phases))


def _settings(spec: PhaseSpec) -> Settings:
    with tempfile.TemporaryDirectory(prefix="sweetpoint-demo-") as directory:
        path = write_config(
            Path(directory),
            "/simulated",
            1,
            sweet_point=spec.loop_sweet_point,
            quota_only=spec.loop_sweet_point is not None,
        )
        return load(path, mode=Mode(spec.mode), cpus=CPUS).settings


class _Node:
    """A simulated node with its planner."""

    def __init__(self, spec: PhaseSpec, seed: int) -> None:
        self._settings = _settings(spec)
        self._node = SimulatedNode(
            seed,
            PLANTS[spec.job.name] if spec.job else Plant(cpus=CPUS),
            wants=(float(CPUS),) if spec.job else (0.0,),
            profile=PROFILE,
        )
        self._planner = Planner(self._settings, self._node.workloads)
        self._random = random.Random(seed)  # noqa: S311 - a model, not a secret
        self._outcomes: tuple[Outcome, ...] = ()
        self._now_ns = 0

    def change(self, spec: PhaseSpec) -> None:
        """Apply the settings of the next phase while the node keeps its state."""
        self._settings = _settings(spec)
        self._planner.reconfigure(self._settings)

    def run(self, spec: PhaseSpec) -> Phase:
        """Advance the node by the length of *spec*."""
        start_ns, start_work_s = self._now_ns, self._node.best_effort_cpu_s
        samples: list[Sample] = []
        load: list[LoadSecond] = []
        while self._now_ns < start_ns + spec.seconds * NS_PER_SEC:
            samples.append(self._tick(spec, start_ns))
            if len(samples) % (NS_PER_SEC // self._settings.tick_ns) == 0:
                load.append(self._requests(len(load)))
        done_s = self._node.best_effort_cpu_s - start_work_s
        work = None
        if spec.job is not None:
            work = Work(job=spec.job.name, unit="CPU s", amount=done_s, seconds=spec.seconds)
        return Phase(
            key=spec.key,
            title=spec.title,
            mode=spec.mode,
            seconds=spec.seconds,
            against=spec.against,
            load=tuple(load),
            samples=tuple(samples),
            work=work,
        )

    def _tick(self, spec: PhaseSpec, start_ns: int) -> Sample:
        snapshot = self._node.snapshot(self._now_ns)
        plan = self._planner.step(snapshot, self._outcomes)
        self._outcomes = self._node.execute(plan.actions) if spec.mode == "enforce" else ()
        knobs = [
            {"path": workload.path, "knob": knob, "applied": self._node.value(workload, knob)}
            for workload in self._node.best_effort
            for knob in (Knob.CPU_QUOTA, Knob.SCHED_IDLE)
        ]
        status = {"plan": dataclasses.asdict(plan), "knobs": knobs}
        self._now_ns += self._settings.tick_ns
        return Sample(
            time_s=(self._now_ns - start_ns) / NS_PER_SEC,
            **parse_status(status, "/batch-"),
            be_oncpu_s=self._node.best_effort_cpu_s,
            ls_oncpu_s=(snapshot.workloads[0].oncpu_ns or 0) / NS_PER_SEC,
        )

    def _requests(self, second: int) -> LoadSecond:
        mean_us = self._node.p99_ns / math.log(100) / NS_PER_US
        latency = (SERVICE_US + self._random.expovariate(1 / mean_us) for _ in range(REQUESTS))
        return LoadSecond(
            start_s=float(second),
            latency_us=tuple(map(round, latency)),
            late_us=(),
            queued=0,
            errors=0,
            timeouts=0,
            generator_cpu_ns=0,
        )
