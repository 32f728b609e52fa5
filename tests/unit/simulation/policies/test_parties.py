# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from controller.simulation.policies.parties import Resource, Wheel


def make_wheel() -> Wheel:
    return Wheel([16, 12], Resource.CPUS)


def test_starts_with_equal_parts() -> None:
    assert make_wheel().held == [8, 6]


def test_takes_one_unit_when_both_slacks_are_low() -> None:
    wheel = make_wheel()
    wheel.update(0.04, 0.30)
    assert wheel.held == [8, 6]
    wheel.update(0.04, 0.04)
    assert wheel.held == [7, 6]


def test_judges_after_five_intervals_and_keeps_the_resource_if_it_helped() -> None:
    wheel = make_wheel()
    wheel.update(-0.5, -0.5)
    for _ in range(5):
        wheel.update(-0.3, -0.3)
        assert wheel.held == [7, 6]
    wheel.update(-0.3, -0.3)
    assert wheel.held == [6, 6]


def test_goes_to_the_next_resource_and_keeps_the_unit_if_it_did_not_help() -> None:
    wheel = make_wheel()
    for _ in range(6):
        wheel.update(-0.5, -0.5)
    wheel.update(-0.5, -0.5)
    assert wheel.held == [7, 5]


def test_gives_back_with_much_slack_and_undoes_what_hurt() -> None:
    wheel = make_wheel()
    wheel.update(0.5, 0.5)
    assert wheel.held == [9, 6]
    for _ in range(5):
        wheel.update(0.01, 0.3)
    assert wheel.held == [8, 6]
    for _ in range(95):
        wheel.update(0.5, 0.5)  # locked for ten seconds
    assert wheel.held == [8, 6]
    for _ in range(10):
        wheel.update(0.5, 0.5)
    assert wheel.held == [8, 7]


def test_jobs_keep_one_unit_and_the_services_too() -> None:
    wheel = Wheel([4, 4], Resource.CPUS)
    for _ in range(200):
        wheel.update(-1.0, -1.0)
    assert wheel.held == [1, 1]
    for _ in range(500):
        wheel.update(0.9, 0.9)
    assert wheel.held == [3, 3]
