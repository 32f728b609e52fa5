# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When cookies are set, how their effect is verified, and when they are removed."""

from dataclasses import dataclass
from itertools import pairwise

from controller.core.settings import CoreMode, CoreSettings
from controller.core.units import NS_PER_SEC
from controller.core.writes.switches import CookieGate

AUTO = CoreSettings(CoreMode.AUTO, overlap_min=0.1, verify_ns=30 * NS_PER_SEC)


@dataclass
class Bench:
    """A gate, a clock in steps of one second, and the input of each step."""

    gate: CookieGate
    now_s: int = 0
    needed: bool = True
    possible: bool = True
    yields: bool = True
    services: bool = True
    overlap: float | None = 0.5
    deviation: float | None = 1.0

    def step(self) -> bool:
        self.now_s += 1
        return self.gate.step(
            self.now_s * NS_PER_SEC,
            needed=self.needed,
            possible=self.possible,
            yields=self.yields,
            services=self.services,
            overlap=self.overlap,
            deviation=self.deviation,
        )

    def run(self, seconds: int) -> list[bool]:
        return [self.step() for _ in range(seconds)]

    def until(self, on: bool, at_most_s: int = 10_000) -> int:
        """Step until the gate is *on*, and return the number of seconds."""
        start = self.now_s
        while self.step() is not on:
            assert self.now_s - start < at_most_s
        return self.now_s - start


def test_engages_after_five_seconds_of_need_with_shared_cores() -> None:
    bench = Bench(CookieGate(AUTO))
    assert bench.run(5) == [False] * 5
    assert bench.step()
    assert bench.gate.verdict is not None
    assert "50%" in bench.gate.verdict.text


def test_does_not_engage_where_it_cannot_help() -> None:
    for change in (
        {"needed": False},
        {"overlap": 0.09},
        {"overlap": None},
        {"yields": False},
        {"possible": False},
        {"services": False},
        {"deviation": None},
    ):
        bench = Bench(CookieGate(AUTO), **change)
        assert not any(bench.run(100)), change
    assert not any(Bench(CookieGate(CoreSettings())).run(100))


def test_a_break_in_the_need_starts_the_five_seconds_again() -> None:
    bench = Bench(CookieGate(AUTO))
    bench.run(4)
    bench.needed = False
    bench.step()
    bench.needed = True
    assert not any(bench.run(5))
    assert bench.step()


def test_stays_when_the_deviation_fell_and_goes_a_minute_after_the_last_need() -> None:
    bench = Bench(CookieGate(AUTO))
    bench.until(on=True)
    bench.deviation = 0.2
    assert all(bench.run(29))
    assert bench.gate.verdict is None
    assert bench.step()
    assert bench.gate.verdict is not None
    assert "cookies stay" in bench.gate.verdict.text
    bench.overlap = 0.0  # the effect of the cookie, and no reason to remove it
    assert all(bench.run(300))
    bench.needed = False
    assert bench.until(on=False) == 60


def test_removed_when_it_does_not_help_and_tried_again_after_a_doubling_wait() -> None:
    bench = Bench(CookieGate(AUTO))
    tries = []
    for _ in range(9):
        bench.until(on=True)
        tries.append(bench.now_s)
        assert bench.until(on=False) == 30
        assert bench.gate.verdict is not None
        assert "do not help" in bench.gate.verdict.text
    gaps = [second - first for first, second in pairwise(tries)]
    waits = [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert gaps == [30 + wait + 5 for wait in waits]  # verify, wait, five seconds of need


def test_the_first_third_of_the_verification_does_not_count() -> None:
    bench = Bench(CookieGate(AUTO))
    bench.until(on=True)
    bench.deviation = 2.0  # the filters still hold old values
    bench.run(9)
    bench.deviation = 0.5
    assert all(bench.run(100))


def test_cookies_whose_effect_cannot_be_verified_are_removed_without_a_wait() -> None:
    bench = Bench(CookieGate(AUTO))
    bench.until(on=True)
    bench.needed, bench.deviation = False, None  # the only service of the cache channel left
    assert bench.until(on=False) == 30
    assert bench.gate.verdict is not None
    assert "could not be verified" in bench.gate.verdict.text
    bench.needed, bench.deviation = True, 1.0
    assert bench.until(on=True) == 6


def test_removed_at_once_when_best_effort_no_longer_yields() -> None:
    bench = Bench(CookieGate(AUTO))
    bench.until(on=True)
    bench.yields = False
    assert not bench.step()
    assert bench.gate.verdict is not None
    assert "sched-idle" in bench.gate.verdict.text


def test_mode_on_needs_no_measurement_but_a_service_and_sched_idle() -> None:
    bench = Bench(CookieGate(CoreSettings(CoreMode.ON)), needed=False, overlap=None, deviation=None)
    assert all(bench.run(200))
    bench.services = False
    assert not bench.step()
    bench.services = True
    assert bench.step()
    bench.gate.settings = CoreSettings()
    assert not bench.step()
