# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Core-scheduling cookies as the cache channel's two-state knob, beside its ladder."""

from controller.control.cookies import CookieGate
from controller.control.ladder import Scene
from controller.control.loops import Loops
from controller.decision import Action, ChannelState, Verdict
from controller.model import Knob, KnobValue
from controller.settings import CoreSettings

__all__ = ("Cookies",)


class Cookies:
    """Asks the gate in every tick, and makes every group of best-effort follow it."""

    __slots__ = ("_gate", "_on")

    def __init__(self, settings: CoreSettings) -> None:
        self._gate = CookieGate(settings)
        self._on = False

    def reconfigure(self, settings: CoreSettings) -> None:
        """Take new settings; what is known of its usefulness stays."""
        self._gate.reconfigure(settings)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What changed in this tick."""
        return () if self._gate.verdict is None else (self._gate.verdict,)

    def actions(
        self, loops: Loops, overlap: float | None, yields: bool, scene: Scene
    ) -> list[Action]:
        """Return the writes of this tick; *loops* are the cache channel's.

        *overlap* and *yields* (sched-idle is on for best-effort) are as in ``CookieGate``.
        """
        demand = loops.demand
        deviation = None if loops.selected is None else loops.selected.filtered_deviation
        on = self._gate.step(
            scene.now_ns,
            needed=demand.wanted > 0 and demand.state is ChannelState.SQUEEZE,
            possible=bool(scene.book.movable(Knob.CORE_COOKIE, scene.now_ns)),
            yields=yields,
            services=bool(scene.roster.services) and not loops.safe,
            overlap=overlap,
            deviation=deviation,
        )
        if on is self._on and not scene.anew:
            return []
        self._on = on
        actions = []
        for target in scene.book.targets(Knob.CORE_COOKIE):
            key = (target.scope, target.id, Knob.CORE_COOKIE)
            if on:
                text = "services share cores with best-effort: a cookie keeps them apart"
                action = scene.book.request(*key, KnobValue(target.path), text, scene.now_ns)
            else:
                text = "no cookie is wanted now"
                action = scene.book.restore(*key, text, scene.now_ns)
            if action is not None:
                actions.append(action)
        return actions
