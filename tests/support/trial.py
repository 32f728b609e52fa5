# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Made-up blocks, and a made-up agent whose pages follow a virtual clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
import random
from typing import Any

from controller.trial.blocks import Arm, Block, Design, Pair

__all__ = ("MadeAgent", "block", "bursty_pairs", "noisy_pairs", "pair", "timed")

NS = 10**9
_STEP_S = 10.0


def block(arm: Arm, suffered: float = 0.1, work: float = 1.0, **values: float) -> Block:
    return Block(
        arm=arm,
        began_s=1000.0,
        measured_s=100.0,
        suffered_ratio={"web": suffered},
        values=values,
        best_effort_cpus=work,
        agent_cpus=0.02,
        stolen_ratio=0.01,
    )


def pair(enforce: tuple[float, float], pause: tuple[float, float]) -> Pair:
    """Return a pair with what the service suffered and the work in either block."""
    return Pair(block(Arm.ENFORCE, *enforce), block(Arm.PAUSE, *pause))


def noisy_pairs(seed: int, count: int, less: float = 0.0, work: float = 1.0) -> list[Pair]:
    """Return pairs in which enforcing takes *less* of the suffering and leaves *work*."""
    numbers = random.Random(seed)
    return [
        pair(
            (0.4 + numbers.gauss(0, 0.05) - less, work * numbers.lognormvariate(0, 0.05)),
            (0.4 + numbers.gauss(0, 0.05), numbers.lognormvariate(0, 0.05)),
        )
        for _ in range(count)
    ]


def bursty_pairs(
    seed: int, design: Design, suffering: float = 1.0, work: float = 1.0
) -> list[Pair]:
    """Return the pairs of *design* on a node whose load drifts and has bursts.

    Both go on from one block to the next one. Enforcing leaves these parts of the suffering and of
    the work.
    """
    node = _BurstyNode(random.Random(seed))
    pairs = []
    for arms in design.order():
        blocks = {}
        for arm in arms:
            steps = [node.step() for _ in range(round(design.length_s(arm) / _STEP_S))]
            measured = steps[round(design.washout_s / _STEP_S) :]
            suffered, cpus = (sum(each) / len(measured) for each in zip(*measured, strict=True))
            if arm is Arm.ENFORCE:
                suffered, cpus = min(1.0, suffering * suffered), work * cpus
            blocks[arm] = block(arm, suffered, cpus)
        pairs.append(Pair(blocks[Arm.ENFORCE], blocks[Arm.PAUSE]))
    return pairs


class _BurstyNode:
    """Ten-second steps of an autoregressive load, with a burst of 90 s in ten minutes on average.

    After five minutes the correlation of the load is 0.4.
    """

    def __init__(self, numbers: random.Random) -> None:
        self._numbers = numbers
        self._level = self._burst_s = 0.0

    def step(self) -> tuple[float, float]:
        """Return the suffering part of the step, and the CPUs of best-effort work in it."""
        numbers = self._numbers
        self._level = 0.97 * self._level + numbers.gauss(0, 0.06)
        if self._burst_s <= 0 and numbers.random() < _STEP_S / 600:
            self._burst_s = numbers.expovariate(1 / 90)
        burst = self._burst_s > 0
        self._burst_s -= _STEP_S
        suffered = 0.15 + 0.3 * self._level + 0.5 * burst + numbers.gauss(0, 0.03)
        cpus = 1.3 - 0.3 * self._level - 0.4 * burst + numbers.gauss(0, 0.05)
        return min(1.0, max(0.0, suffered)), max(0.05, cpus)


def timed(design: Design, pairs: Sequence[Pair]) -> list[Pair]:
    """Return *pairs* one after the other, in the order of *design*, from September 2026 on."""
    now_s, found = 1.79e9, []
    for order, blocks in zip(design.order(), pairs, strict=False):
        began_s = {}
        for arm in order:
            began_s[arm] = now_s
            now_s += design.length_s(arm)
        found.append(Pair(*(replace(each, began_s=began_s[each.arm]) for each in blocks)))
    return found


@dataclass
class MadeAgent:
    """An agent and its clock. ``suffers`` gives the suffering part of the time, by whether paused.

    ``at`` are calls at times; ``pauses`` are the ends of those in force. The page has those of
    ``lag_s`` ago, as that of an agent between two ticks. With ``policy`` a pause is one of this
    policy, which the agent ``leaves`` or not. It replaces profiles as ``replaces`` says, and
    ``others`` are in force as well. ``config`` stands for the files of the agent. With a ``digest``
    the policy is a candidate: it is in force until the end that ``pause`` sets, and nothing is
    paused. ``suffers`` is asked whether it is paused, or not in force.
    """

    suffers: Callable[[bool], float] = lambda paused: 0.5 if paused else 0.1
    mode: str = "enforce"
    lag_s: float = 0.0
    at: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    now: float = 1000.0
    pauses: list[float] = field(default_factory=list)
    ran_s: float = 0.0
    suffered_s: float = 0.0
    oncpu_s: float = 0.0
    answers: bool = True
    policy: str = ""
    leaves: bool = True
    replaces: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=lambda: ["night"])
    config: str = "one"
    digest: str = ""
    sets: dict[str, Any] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)
    log: list[tuple[float, str]] = field(default_factory=list)
    own: float | None = None
    past: list[tuple[float, list[float]]] = field(default_factory=list)

    def now_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            step = min(0.5, end - self.now)
            self.past.append((self.now, [*self.pauses]))
            self.now += step
            self.pauses = [until for until in self.pauses if until > self.now]
            paused = bool(self.pauses) is not bool(self.digest)
            self.ran_s += step
            self.suffered_s += step * self.suffers(paused)
            self.oncpu_s += step * (1.5 if paused else 1.0)
            for event in [each for each in self.at if each[0] <= self.now]:
                self.at.remove(event)
                event[1]()

    def page(self) -> dict[str, Any] | None:
        if not self.answers:
            return None
        pauses = self.pauses
        if self.lag_s:
            seen = [each for at, each in self.past if at <= self.now - self.lag_s]
            pauses = seen[-1] if seen else []
        loop = {"service": "web", "indicator": "runq_p99", "status": "fresh", "value": 2e6}
        loop["is_time"] = True
        return {
            "mode": self.mode,
            "pauses": [] if self.digest else [{"until_s": until} for until in pauses],
            "policies": {
                "in_force": self._in_force(pauses),
                "candidate": {"digest": self.digest, "until_s": pauses[0]}
                if self.digest and pauses
                else None,
            },
            "config_digest": self.config,
            "time_ns": round(self.now * NS),
            "ran_ns": round(self.ran_s * NS),
            "plan": {"loops": [loop]},
            "suffered": [
                {"service": "web", "channel": "cpu", "state": "x", "time_ns": self.suffered_s * NS}
            ],
            "workloads": [
                {"path": "/batch", "qos": "best-effort", "oncpu_ns": self.oncpu_s * NS},
                {"path": "/web", "qos": "latency-sensitive", "oncpu_ns": 7 * self.now * NS},
            ],
            "agent": {"cpu_s": 0.02 * self.ran_s},
        }

    def _in_force(self, pauses: list[float]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{"policy": each} for each in self.others]
        if not self.leaves or bool(pauses) is bool(self.digest):
            what = {"sets": self.sets, "replaces": self.replaces, "changes": self.changes}
            found.append({"policy": self.policy, **what})
        return found

    def pause(self, until_s: float) -> None:
        self.own = until_s
        self.pauses = [until_s]
        self.log.append((self.now, "pause"))

    def resume(self) -> None:
        if self.own in self.pauses:
            self.pauses.remove(self.own)
            self.log.append((self.now, "resume"))
        self.own = None
