# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a trial: pauses the agent or a policy in one block of each pair, and measures in both.

With a candidate it is the other way round: nothing is paused, and in one block the candidate is in
force. Each pause and each candidate ends by itself less than a minute after its block. So a runner
that is killed leaves an agent that soon enforces as before, and nothing else.

Pairs count together as long as the agent has the same configuration. When its files or the profiles
of its cluster change, the pairs begin anew.
"""

from collections.abc import Iterator
from statistics import fmean
from typing import Protocol

from controller.page.view import number, records, text
from controller.trial.blocks import Arm, Block, Change, Design, Pair, Results
from controller.trial.comparison import (
    Comparison,
    candidate,
    comparison,
    configuration,
    is_in_force,
    others_in_force,
)
from controller.trial.measure import CounterResetError, Meter, Page

__all__ = ("Agent", "Clock", "HarmError", "Runner", "TrialEndError")

# How often the agent is asked; it answers between two ticks.
_ASK_EVERY_S = 2.0
# How long the agent may not answer, or not obey a pause or its end.
_ANSWER_WITHIN_S = 30.0
# How much longer than its block a pause would last if nothing ended it.
_MARGIN_S = 10.0
# A part of a block as small as this says nothing about the whole.
_LEAST_S = 5.0


class TrialEndError(Exception):
    """The trial ends before its time; the message says why."""


class HarmError(TrialEndError):
    """The trial ends because a service is hurt in a block of ``arm``, which began at ``began_s``.

    The time is in seconds since 1970. What hurts is what was in force then.
    """

    def __init__(self, arm: Arm, began_s: float, message: str) -> None:
        super().__init__(message)
        self.arm, self.began_s = arm, began_s


class _ChangedError(Exception):
    """The blocks of a pair would have different configurations."""


class Agent(Protocol):
    """The agent of this host, which enforces."""

    def page(self) -> Page | None:
        """Return /statusz; ``None``: there is no answer now."""

    def pause(self, until_s: float) -> None:
        """Pause everything, or the policy of the trial, until *until_s*, since 1970.

        If the trial has a candidate: put it in force until then.

        :raises TrialEndError: the pause or the candidate cannot be written.
        """

    def resume(self) -> None:
        """End what ``pause`` began, and nothing else."""


class Clock(Protocol):
    """Time since 1970 in seconds."""

    def now_s(self) -> float:
        """Return the time."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Runner:
    """Runs the blocks of *design* on *agent*.

    *most_harm* ends the trial: the largest part of a block, 0 to 1, by which a service may be
    longer above its sweet point than it is in blocks of the other arm.

    ``pairs`` are those of the present configuration, and ``left_out`` is the number of pairs of
    earlier ones. ``lost`` counts pairs that were begun and not measured. ``comparison`` is what the
    policy did in the last block with it.
    """

    def __init__(self, agent: Agent, clock: Clock, design: Design, most_harm: float) -> None:
        self._agent, self._clock, self._design = agent, clock, design
        self._most_harm = most_harm
        self._until_s = 0.0
        # The arm with a pause or a candidate.
        self._told = Arm.ENFORCE if design.candidate else Arm.PAUSE
        self._configuration: tuple[str, str] | None = None
        self._others: list[str] | None = None  # the other policies of this pair
        self.comparison = Comparison()
        self._changes: tuple[Change, ...] = ()  # in the last pair that counts
        self.pairs: list[Pair] = []
        self.lost = self.left_out = 0

    def run(self) -> Iterator[Pair]:
        """Yield each pair when it has been measured; at the end the agent enforces.

        A pair in which the agent was started again, or its configuration or its other policies
        changed, is lost.

        :raises HarmError: a service is hurt too much.
        :raises TrialEndError: another pause is in force, or the agent does not answer or does not
            enforce.
        """
        try:
            for arms in self._design.order():
                self._others = None
                try:
                    blocks = {arm: self._block(arm) for arm in arms}
                except (CounterResetError, _ChangedError):
                    self.lost += 1
                    continue
                pair = Pair(blocks[Arm.ENFORCE], blocks[Arm.PAUSE])
                self.pairs.append(pair)
                self._changes = self.comparison.changes
                yield pair
        finally:
            self._agent.resume()

    @property
    def configuration(self) -> tuple[str, str] | None:
        """Digests of the agent's files and of its profiles; ``None`` before the first page."""
        return self._configuration

    def results(self, node: str) -> Results:
        """Return what has been measured on *node* so far."""
        changes = self._changes if self.pairs else ()
        return Results(node, self._design, self.pairs, self.left_out, changes)

    def _block(self, arm: Arm) -> Block:
        length_s = self._design.length_s(arm)
        if arm is self._told:
            self._until_s = self._clock.now_s() + _ANSWER_WITHIN_S + length_s + _MARGIN_S
            self._agent.pause(self._until_s)
        else:
            self._agent.resume()
        try:
            first = self._obeying(arm)
            self._check_unchanged(first)
            if arm is Arm.ENFORCE:
                self.comparison = comparison(self._design.policy, first)
            began_s = self._clock.now_s()
            end_s = began_s + length_s
            *_, page = first, *self._pages(arm, began_s + self._design.washout_s)
            meter = Meter(arm, page, began_s)
            for page in self._pages(arm, end_s):
                meter.take(page)
                self._check_harm(arm, meter, began_s)
        finally:
            if arm is self._told:
                self._agent.resume()
        return meter.block()

    def _obeying(self, arm: Arm) -> Page:
        """Return the first page of an agent that does what *arm* says."""
        stop_s = self._clock.now_s() + _ANSWER_WITHIN_S
        while self._clock.now_s() < stop_s:
            page = self._agent.page()
            # Until its next tick the page may have the pause of the block before.
            if page is not None and self._is_alone(arm, page):
                return page
            self._clock.sleep(_ASK_EVERY_S / 4)
        raise TrialEndError(
            f"the agent did not {self._wish(arm)} within "
            f"{_ANSWER_WITHIN_S:.0f} s; does 'sweetpoint status' name another pause?"
        )

    def _wish(self, arm: Arm) -> str:
        if policy := self._design.policy:
            return f"{'leave' if arm is Arm.PAUSE else 'take'} policy {policy}"
        return "pause" if arm is Arm.PAUSE else "enforce"

    def _pages(self, arm: Arm, until_s: float) -> Iterator[Page]:
        """Yield pages of the agent until *until_s*, the last one then."""
        answered_s = self._clock.now_s()
        while True:
            now_s = self._clock.now_s()
            page = self._agent.page()
            if page is not None:
                self._check(arm, page)
                answered_s = now_s
                yield page
            elif now_s - answered_s > _ANSWER_WITHIN_S:
                raise TrialEndError(f"the agent did not answer for {_ANSWER_WITHIN_S:.0f} s")
            if now_s >= until_s:
                return
            self._clock.sleep(min(_ASK_EVERY_S, until_s - now_s))

    def _check(self, arm: Arm, page: Page) -> None:
        """Check that no other command changes what the agent does."""
        if page.get("mode") != "enforce":
            raise TrialEndError(f"the agent is in mode {text(page.get('mode'))}")
        if not self._is_alone(arm, page):
            policy = self._design.policy
            or_policy = f", or policy {policy} began or ended" if policy else ""
            if self._design.candidate:
                or_policy += "; a restart of the agent ends it"
            raise TrialEndError(f"another command began or ended a pause{or_policy}")
        self._check_unchanged(page)

    def _check_unchanged(self, page: Page) -> None:
        """Check that the pair still compares what it did.

        Another policy that begins or ends, for instance by the hour, is as another load: it costs
        the pair, and the others count.

        :raises _ChangedError: it compares something else.
        """
        found, others = configuration(page), others_in_force(self._design.policy, page)
        before, self._configuration = self._configuration, found
        is_other = before not in (None, found)
        if is_other:
            self.left_out += len(self.pairs)
            self.pairs.clear()
        before_others, self._others = self._others, others
        # Before the first page of a pair nothing of it was measured.
        if before_others is not None and (is_other or before_others != others):
            raise _ChangedError

    def _is_alone(self, arm: Arm, page: Page) -> bool:
        """Whether the agent obeys this block, and nothing else."""
        digest, policy = self._design.candidate, self._design.policy
        own_s = [self._until_s] if arm is self._told else []
        pauses = [] if digest else own_s
        if [number(each.get("until_s")) for each in records(page.get("pauses"))] != pauses:
            return False
        if candidate(page) != ((digest, *own_s) if digest and own_s else None):
            return False
        # A pause that the agent knows says not yet that the policy has left the configuration.
        return not policy or is_in_force(policy, page) is (arm is Arm.ENFORCE)

    def _check_harm(self, arm: Arm, meter: Meter, began_s: float) -> None:
        """Check that the services are not much worse off than in blocks of the other arm.

        Without a policy they have what they have without the trial, so that ends none. Otherwise
        the policies that help most would never have enough pairs for a verdict.
        """
        if (self._design.policy and arm is Arm.PAUSE) or self._most_harm >= 1:
            return  # a tick may last a moment longer than the block
        others = [block for pair in self.pairs for block in pair if block.arm is not arm]
        if not others or meter.measured_s < _LEAST_S:
            return
        length_s = self._design.length_s(arm) - self._design.washout_s
        for service, suffered_s in meter.suffered_s().items():
            usual = fmean(block.suffered_ratio.get(service, 0.0) for block in others)
            if suffered_s / length_s - usual > self._most_harm:
                doing = "pausing" if arm is Arm.PAUSE else "enforcing"
                if self._design.policy:
                    doing = f"enforcing {self._design.names[arm]}"
                raise HarmError(
                    arm,
                    began_s,
                    f"{doing} hurts {service}: above its sweet point for {suffered_s:.0f} s of a "
                    f"block of {length_s:.0f} s, and {usual:.0%} of the time otherwise "
                    "(--most-harm)",
                )
