# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from controller.simulation.policies.rubik import next_level, suspect_score


@pytest.mark.parametrize("least_score, least_excess", [(0.35, 1.54), (0.15, 1.18)])
def test_a_steady_suspect_needs_this_excess_of_cpi(least_score: float, least_excess: float) -> None:
    steady = [2.0] * 10
    assert suspect_score([1.02 * least_excess] * 10, steady, 1.0) > least_score
    assert suspect_score([0.98 * least_excess] * 10, steady, 1.0) < least_score


def test_use_while_the_victim_is_well_counts_against_suspicion() -> None:
    cpi = [2.0, 1.0, 2.0, 1.0]
    assert suspect_score(cpi, [1, 0, 1, 0], 1.5) == pytest.approx(1 - 1.5 / 2)
    assert suspect_score(cpi, [0, 1, 0, 1], 1.5) == pytest.approx(1 / 1.5 - 1)
    assert suspect_score(cpi, [0, 0, 0, 0], 1.5) == 0.0


@pytest.mark.parametrize(
    "level, ratios, expected",
    [
        (50, [0.25, 0.01], 20),
        (20, [0.05, 0.09], 25),
        (50, [0.05], 50),
        (30, [0.15], 30),
        (30, [0.05, 0.15], 30),
    ],
)
def test_levels_of_the_cache(level: float, ratios: list[float], expected: float) -> None:
    assert next_level(level, ratios, least=20) == expected
