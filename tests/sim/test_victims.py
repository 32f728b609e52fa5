# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A strict and a tolerant service: only what hurts the strict one is cut and evicted for it."""

from dataclasses import replace
from random import Random

import pytest

from controller.core.decision import Eviction
from controller.core.knob_values import parse_quota
from controller.core.model import Knob
from controller.core.settings import LawSettings
from tests.sim.harm_node import HarmNode, settings_for
from tests.sim.plants import CacheNode
from tests.support.loops.closed_loop import LAW, ClosedLoop, make_settings
from tests.support.loops.resource_loop import resource_settings

STRICT_NS, TOLERANT_NS = 2e6, 100e6
# Batch-0 makes the tolerant service wait, batch-1 the strict one, each by 20 ms per CPU.
HARM = [[0.0, 20e6], [20e6, 0.0]]


def make_loop(node: HarmNode, evict_after_s: int | None = None) -> ClosedLoop[HarmNode]:
    settings = make_settings()
    if evict_after_s is not None:
        profile = replace(
            settings.profiles["default"], evict_enabled=True, evict_after_ns=evict_after_s * 10**9
        )
        settings = replace(settings, profiles={"default": profile})
    return ClosedLoop(node, settings_for(node, [STRICT_NS, TOLERANT_NS], settings))


def test_a_tolerant_service_does_not_charge_its_culprit_for_a_strict_one() -> None:
    """By the blame of all services together the innocent one would get 4 % of its work."""
    node = HarmNode(1, HARM, wants=(2.7, 2.7))
    loop = make_loop(node)
    loop.run(60)
    before = node.work
    loop.run(60)
    assert node.waits_ns[0] < 2 * STRICT_NS
    innocent, culprit = ((now - then) / 60 for now, then in zip(node.work, before, strict=True))
    assert innocent > 0.95 * 2.7
    assert 0.05 < culprit < 0.2


def evictions(node: HarmNode, seconds: float) -> list[Eviction]:
    plans = make_loop(node, evict_after_s=3).run(seconds)
    return [plan.eviction for plan in plans if plan.eviction is not None]


def test_a_workload_that_only_a_tolerant_service_waits_for_is_not_evicted() -> None:
    """The strict service also waits for what no squeeze takes away, so every knob is at its stop.

    The tolerant service waits far more, for the other workload.
    """
    for seed in range(20):
        random = Random(seed)
        harm = [
            [0.0, random.uniform(100e6, 400e6)],
            [random.uniform(50e6, 400e6), random.uniform(0.0, 2e6)],
        ]
        node = HarmNode(seed, harm, wants=(random.uniform(1, 3), random.uniform(1, 3)))
        found = evictions(node, 25)
        assert {each.name for each in found} == {"batch-1"}, seed


@pytest.mark.parametrize("second_ns", [1.5e6, 12e6])
def test_two_services_with_a_culprit_each_settle_at_their_sweet_points(second_ns: float) -> None:
    """Their turns at the larger demand must not shift the cut to and fro."""
    node = HarmNode(3, HARM, wants=(2.0, 2.0))
    node.plant = replace(node.plant, noise=0.0)
    loop = ClosedLoop(node, settings_for(node, [2e6, second_ns], make_settings()))
    loop.run(180)
    writes = sum(len(plan.actions) for plan in loop.run(120))
    assert writes <= 12
    assert node.waits_ns == pytest.approx([2e6, second_ns], rel=0.25)


def cpus_of_streamer_and_innocents(law: LawSettings) -> list[float]:
    """Return the CPUs of three workloads, of which the first fills the memory's bandwidth."""
    node = CacheNode(1, wants=(16e9, 0.2e9, 0.2e9), group=False)
    loop = ClosedLoop(node, resource_settings(node, law=law))
    loop.run(90)
    assert node.value < 1.25 * 1.1
    values = [node.knobs.value(each.cgroup.id, Knob.CPU_QUOTA) for each in node.best_effort]
    return [parse_quota(value).cpus or 1.0 for value in values]


def test_the_cache_channel_cuts_the_workload_with_the_memory_traffic() -> None:
    streamer, *innocents = cpus_of_streamer_and_innocents(LAW)
    assert streamer < 0.5
    assert min(innocents) > 0.95


def test_by_waits_for_a_cpu_the_cache_channel_cuts_all_alike() -> None:
    streamer, *innocents = cpus_of_streamer_and_innocents(replace(LAW, cut_by_signal=False))
    assert max(innocents) < 1.1 * streamer
