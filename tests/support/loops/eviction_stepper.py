# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An eviction policy that tests step second by second."""

from controller.core.decision import Eviction
from controller.core.eviction.budget import Candidate, EvictionBudget, EvictionHistory
from controller.core.eviction.policy import Case, EvictionPolicy
from controller.core.model import (
    CgroupId,
    Channel,
    EvictionAnswer,
    EvictionResult,
    IndicatorName,
)
from controller.core.settings import EvictionLimits

__all__ = ("HOG", "MOUSE", "OTHER", "SECOND_NS", "Stepper", "candidate")

SECOND_NS = 1_000_000_000
HOG, MOUSE, OTHER = (CgroupId("cpu", number) for number in (1, 2, 3))


def candidate(
    cgroup: CgroupId,
    blame: float,
    priority: int = 0,
    size: float = 1.0,
    share: float | None = None,
) -> Candidate:
    """Return a candidate; *share* is *blame* unless it is given."""
    share = blame if share is None else share
    return Candidate(cgroup, f"batch-{cgroup.id}", blame, share, priority, size)


class Stepper:
    """An eviction policy stepped by one second at a time.

    ``deviations`` are those of the services that are present, as of the last step.
    """

    def __init__(
        self,
        *candidates: Candidate,
        limits: EvictionLimits | None = None,
        before: EvictionHistory | None = None,
    ) -> None:
        self.policy = EvictionPolicy(
            EvictionBudget(limits or EvictionLimits(), before or EvictionHistory())
        )
        self.answers: list[EvictionAnswer] = []
        self.may_evict = True
        self.candidates = list(candidates)
        self.now_ns = 0
        self.deviations: dict[str, float] = {}
        self.verdicts: list[str] = []

    def step(
        self,
        deviation: float = 1.0,
        at_stop: bool = True,
        caused: bool | None = True,
        enabled: bool = True,
        service: str = "web",
    ) -> Eviction | None:
        """Step the policy by one second with the case of *service* and return its eviction."""
        self.deviations[service] = deviation
        share = {True: 1.0, False: 0.19, None: None}[caused]
        case = Case(
            channel=Channel.CPU,
            service=service,
            indicator=IndicatorName.RUNQ_P99,
            at_stop=at_stop,
            deviation=deviation,
            be_share=share,
            be_share_min=0.2,
            enabled=enabled,
            after_ns=60 * SECOND_NS,
        )
        return self._step([case])

    def step_without_service(self) -> None:
        """Step the policy by one second without a service, so without a case."""
        self.deviations.clear()
        assert self._step([]) is None

    def _step(self, cases: list[Case]) -> Eviction | None:
        self.now_ns += SECOND_NS
        eviction = self.policy.step(
            self.now_ns,
            cases,
            lambda case: self.candidates,
            {each.cgroup for each in self.candidates},
            lambda service, indicator: self.deviations.get(service),
            self.answers,
            may_evict=self.may_evict,
        )
        self.answers = []
        self.verdicts += [each.text for each in self.policy.verdicts]
        return eviction

    def run(
        self, seconds: int, deviation: float = 1.0, caused: bool | None = True
    ) -> list[Eviction]:
        """Step the policy *seconds* times and return the evictions."""
        found = (self.step(deviation, caused=caused) for _ in range(seconds))
        return [each for each in found if each is not None]

    def answer(self, cgroup: CgroupId, result: EvictionResult, wait_s: int = 0) -> None:
        """Answer an eviction at the next step."""
        wait_ns = wait_s * SECOND_NS
        self.answers = [EvictionAnswer(cgroup, Channel.CPU, result, "because", wait_ns)]

    def leave(self, cgroup: CgroupId) -> None:
        """Remove a candidate, as after its end."""
        self.candidates = [each for each in self.candidates if each.cgroup != cgroup]
