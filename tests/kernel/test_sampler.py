# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sampler over all probes, with more workloads than slots."""

from collections.abc import Callable, Iterator
import itertools
import logging
from pathlib import Path

import pytest

from controller.agent import sampler as sampling
from controller.agent.sampler import Sampler
from controller.core.model import CgroupId, QosClass, Workload, WorkloadSample
from controller.host.facts import CgroupLayout
from controller.probes import slots
from controller.probes.sched import MAX_SLOTS
from tests.kernel.samplers import open_sampler

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

MAX_WORKLOADS = MAX_SLOTS - 3


@pytest.fixture
def sampler(cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Sampler]:
    with open_sampler(cgroup_layout, tmp_path) as sampler:
        yield sampler


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_REUSE_AFTER_NS", 0)
    monkeypatch.setattr(sampling, "_RETRY_NS", 0)


@pytest.fixture
def make(cgroup_layout: CgroupLayout) -> Callable[..., tuple[Workload, ...]]:
    numbers = itertools.count(2**40)  # of no cgroup

    def several(name: str, number: int, qos: QosClass = QosClass.BE) -> tuple[Workload, ...]:
        return tuple(
            Workload(
                name=f"{name}:{each}",
                cgroup=CgroupId(cgroup_layout.hierarchy, next(numbers)),
                path=f"/none-{name}-{each}",
                qos=qos,
                service="",
                profile="",
            )
            for each in range(number)
        )

    return several


def measured(sampler: Sampler) -> dict[CgroupId, WorkloadSample]:
    return {s.cgroup: s for s in sampler.poll().workloads if s.oncpu_ns is not None}


def test_a_workload_without_a_slot_is_measured_as_soon_as_another_is_removed(
    sampler: Sampler, make: Callable[..., tuple[Workload, ...]]
) -> None:
    crowd = make("crowd", MAX_WORKLOADS + 1)
    sampler.set_workloads(crowd)
    assert measured(sampler).keys() == {workload.cgroup for workload in crowd[:-1]}
    assert sampler.unmeasured == {QosClass.BE: 1}
    sampler.set_workloads(crowd[1:])
    assert measured(sampler).keys() == {workload.cgroup for workload in crowd[1:]}
    assert sampler.unmeasured == {}


def test_a_service_that_comes_last_is_measured(
    sampler: Sampler,
    make: Callable[..., tuple[Workload, ...]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    crowd, services = make("crowd", MAX_WORKLOADS + 500), make("web", 3, QosClass.LS)
    sampler.set_workloads(crowd)
    sampler.set_workloads((*crowd, *services))
    for _ in range(3):
        sampler.poll()
    found = measured(sampler)
    assert all(found[each.cgroup].runq_histogram is not None for each in services)
    assert len(found) == MAX_WORKLOADS
    assert sampler.unmeasured == {QosClass.BE: 503}
    sampler.set_workloads(services)
    # One line for the crowd, one for the services, one when all are measured.
    levels = [r.levelname for r in caplog.records if "measured" in r.message]
    assert levels == ["WARNING", "WARNING", "INFO"]


def test_a_rule_with_few_workloads_gets_slots_beside_one_with_a_crowd(
    sampler: Sampler, make: Callable[..., tuple[Workload, ...]]
) -> None:
    crowd, few = make("crowd", MAX_WORKLOADS + 500), make("few", 20)
    sampler.set_workloads(crowd)
    sampler.set_workloads((*crowd, *few))
    for _ in range(3):
        sampler.poll()
    assert {each.cgroup for each in few} <= measured(sampler).keys()


def test_a_service_gets_its_histogram_when_a_record_is_free_again(
    sampler: Sampler, make: Callable[..., tuple[Workload, ...]]
) -> None:
    services = make("web", 257, QosClass.LS)
    sampler.set_workloads(services)
    last = services[-1].cgroup
    assert measured(sampler)[last].runq_histogram is None
    assert sampler.unmeasured == {QosClass.LS: 1}
    sampler.set_workloads(services[1:])
    sample = measured(sampler)[last]
    assert sample.runq_histogram is not None and not sum(sample.runq_histogram)
    assert sampler.unmeasured == {}
