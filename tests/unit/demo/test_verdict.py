# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A verdict of the demonstration says better or worse only outside of the scatter of the rounds."""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch

import pytest

from controller.demo.results import MemoryRun, Phase, Sample
from controller.demo.verdict import (
    Tone,
    Verdict,
    disturbance,
    memory_sentence,
    sentence,
    verdicts,
)
from tests.unit.demo.made_phases import phase

QUIET = [1.0] * 10


def rounds(
    alone_ms: Sequence[float], plain_ms: Sequence[float], managed_ms: Sequence[float]
) -> list[Phase]:
    """Return rounds with these latencies; batch work keeps all of its work."""
    found: list[Phase] = []
    for alone, plain, managed in zip(alone_ms, plain_ms, managed_ms, strict=True):
        found += [
            phase("alone", runq_ms=QUIET, latency_ms=alone),
            phase("plain", runq_ms=QUIET, latency_ms=plain, work=100),
            phase("managed", runq_ms=QUIET, latency_ms=managed, work=100, against="plain"),
        ]
    return found


def latency(phases: Sequence[Phase]) -> Verdict:
    return verdicts(phases)[0]


def test_lower_in_all_rounds_is_better() -> None:
    found = latency(rounds([1, 1.1, 1], [10, 11, 9], [2, 2.2, 2.1]))
    assert (found.tone, found.figure) == (Tone.GOOD, "4.75\N{MULTIPLICATION SIGN} lower")
    assert "88% of the harm removed; goal 50%: met" in found.details


def test_little_of_the_harm_removed_is_told() -> None:
    found = latency(rounds([1, 1, 1], [10, 10.1, 10], [8, 8.1, 8]))
    assert found.tone is Tone.GOOD
    assert "22% of the harm removed; goal 50%: missed" in found.details


def test_higher_in_all_rounds_is_worse() -> None:
    found = latency(rounds([1, 1, 1], [2, 2.1, 2], [6, 6.1, 6.2]))
    assert (found.tone, found.figure) == (Tone.BAD, "3\N{MULTIPLICATION SIGN} higher")


def test_higher_where_there_was_no_harm_is_worse_too() -> None:
    assert latency(rounds([1, 1, 1], [1, 1, 1], [6, 6.1, 6.2])).tone is Tone.BAD


def test_within_the_scatter_of_the_rounds_one_cannot_tell() -> None:
    found = latency(rounds([1, 1, 1], [5, 9, 20], [4, 10, 8]))
    assert found.tone is Tone.UNSURE
    assert "One cannot tell a change from the scatter of 3 rounds" in found.says


@pytest.mark.parametrize("managed_ms", [0.1, 0.21, 0.68])
def test_without_harm_one_round_shows_nothing(managed_ms: float) -> None:
    found = latency(rounds([0.2], [0.21], [managed_ms]))
    assert found.tone is Tone.UNSURE
    assert "No harm to remove; within the scatter of one round." in found.says
    assert f"p99 {managed_ms:.2f} ms managed, 0.21 ms unmanaged, 0.20 ms alone" in found.details


@pytest.mark.parametrize("managed_ms", [0.1, 90.0])
def test_one_round_shows_neither_better_nor_worse(managed_ms: float) -> None:
    found = verdicts(rounds([1], [10], [managed_ms]))
    assert {each.tone for each in found} == {Tone.UNSURE}
    assert "An interval needs several" in found[0].says


def test_without_measurement_there_is_neither_good_nor_bad() -> None:
    plain = phase("plain", runq_ms=[None] * 4)
    managed = phase("managed", runq_ms=[None] * 4, against="plain")
    found = verdicts([plain, managed] * 3)
    assert {each.tone for each in found} == {Tone.UNSURE}
    assert all("not measured" in each.says for each in found)


def parts(runq_ms: Sequence[float], work: Sequence[float]) -> tuple[Tone, Tone]:
    """Return the verdicts on the windows and on the work, of rounds with these values."""
    found: list[Phase] = []
    for runq, done in zip(runq_ms, work, strict=True):
        found += [
            phase("plain", runq_ms=QUIET, work=100),
            phase("managed", runq_ms=[runq] * 10, work=done, against="plain"),
        ]
    _, windows, kept = verdicts(found)
    return windows.tone, kept.tone


def test_goals_are_met_or_missed_only_if_the_whole_interval_is() -> None:
    # The sweet point is 2 ms.
    assert parts([2.0, 1.0, 2.0], [93, 94, 93]) == (Tone.GOOD, Tone.GOOD)
    assert parts([2.1, 3.0, 2.1], [80, 81, 80]) == (Tone.BAD, Tone.BAD)
    assert parts([1.0, 3.0, 1.0], [80, 99, 99]) == (Tone.UNSURE, Tone.UNSURE)


def test_the_interval_of_a_part_ends_where_no_part_can_be() -> None:
    plain = phase("plain", runq_ms=QUIET, work=100)
    bad = phase("managed", runq_ms=[9.0] * 10, against="plain")
    good = phase("managed", runq_ms=QUIET, against="plain")
    found = verdicts([plain, bad, plain, good])[1]
    assert found.details[-1] == "50%, with 95% confidence 0% to 100% (2 rounds)"


@pytest.mark.parametrize(("steal_cpus", "late_ms"), [(0.06, 0.0), (0.0, 1.5)])
def test_a_busy_machine_is_reported(steal_cpus: float, late_ms: float) -> None:
    plain = phase("plain", runq_ms=[9.0] * 10, work=100, latency_ms=100.0)
    quiet = phase("managed", runq_ms=[1.0] * 10, work=95, against="plain")
    busy = replace(
        quiet,
        samples=tuple(replace(s, steal_s=s.time_s * steal_cpus) for s in quiet.samples),
        load=tuple(replace(s, late_us=(round(late_ms * 1000),)) for s in quiet.load),
    )
    assert disturbance([plain, quiet]) is None
    assert "The machine was busy" in (disturbance([plain, busy]) or "")


def loop(number: int, be_cpus: float, calm_s: int) -> Phase:
    """Return a phase of the quota loop of 40 s with *calm_s* seconds of small deviation."""
    return Phase(
        key=f"loop {number}",
        title=f"quota loop only, {number}ms",
        mode="enforce",
        seconds=40.0,
        against=None,
        load=(),
        samples=tuple(
            Sample(
                time_s=float(second),
                filtered_deviation=-0.3 if 2 <= second <= 2 + calm_s else 0.31,
                be_oncpu_s=second * be_cpus,
            )
            for second in range(40)
        ),
        work=None,
    )


@pytest.mark.parametrize(
    ("be_cpus", "calm_s", "missed"),
    [
        ((0.3, 0.9, 0.3), 30, ""),
        ((0.3, 0.2, 0.3), 30, "did not give batch work more"),
        ((0.3, 0.9, 0.9), 30, "did not give batch work more"),
        ((0.3, 0.9, 0.3), 29, "30 s at a stretch"),
    ],
)
def test_verdict_on_the_quota_loop(be_cpus: tuple[float, ...], calm_s: int, missed: str) -> None:
    (found,) = verdicts([loop(number, cpus, calm_s) for number, cpus in enumerate(be_cpus, 1)])
    assert (found.tone is Tone.GOOD) == (not missed)
    assert ("All goals met" in found.says) == (not missed)
    assert missed in found.says


def test_in_text_the_tone_is_a_word() -> None:
    line = sentence(Verdict(title="work", figure="91%", says="of it.", details=("a", "b")))
    assert line == "[cannot tell] work: 91% of it. (a; b)"


@pytest.mark.parametrize(
    ("plain", "managed", "says"),
    [
        (False, True, "memory: unmanaged, the kernel ended the service after 2 s, * managed, it *"),
        (False, False, "memory: the kernel ended the service after 2 s, *; with sweetpoint too, *"),
        (True, True, "memory: nothing is shown, *"),
        (True, False, "memory: nothing is shown, *"),
    ],
)
def test_memory_is_judged_by_who_lives(plain: bool, managed: bool, says: str) -> None:
    runs = [
        MemoryRun(
            mode=mode, lived=lived, seconds=2.2, held_mib=160, needed_mib=200, jobs_ended=jobs
        )
        for mode, lived, jobs in (("observe", plain, 0), ("enforce", managed, 7))
    ]
    assert fnmatch(memory_sentence(runs), says)
