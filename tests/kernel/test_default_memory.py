# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The default profile where best-effort work takes a service's memory: nothing before learning.

A squeeze is a lower limit of the memory guard on v1, for less page cache, and memory.high on v2.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.core.model import IndicatorName
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.test_refaults import Reader, ReadersNode
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

# The pages of the service, those of the job, and the limit of both. The kernel keeps pages that are
# read often, so a longer file of the job would push out its own pages only. What best-effort work
# keeps at least, 64 MiB above its need, has to fit.
SERVICE_MIB, JOB_MIB, LIMIT_MIB = 100, 160, 220
A_TENTH = SERVICE_MIB * 256 // 10  # of the pages of the service
KNOBS = {"v1": "memory.max", "v2": "memory.high"}
QUICK = "tests.kernel.quick_learner"


@pytest.fixture
def node(cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path) -> Iterator[ReadersNode]:
    made = ReadersNode(cgroup_layout, cgroup_root, tmp_path)
    made.limit(made.below, LIMIT_MIB)
    made.write(f"capacity: {LIMIT_MIB}MiB, margin: 8MiB", profile="default")
    yield made
    remove_cgroup(made.below)


@pytest.fixture
def readers(node: ReadersNode) -> Iterator[tuple[Reader, Reader]]:
    with ExitStack() as stack:
        web, job = node.start("web", SERVICE_MIB), node.start("batch/job", JOB_MIB)
        stack.callback(web.close)
        stack.callback(job.close)
        yield web, job


def is_sure(agent: AgentRun) -> bool:
    learned = agent.status()["plan"]["learned"]
    return any(each["indicator"] == IndicatorName.REFAULTS and each["is_sure"] for each in learned)


def state(agent: AgentRun, wanted: str, *working: Reader) -> bool:
    """Let the readers read once; return whether the memory channel is in the *wanted* state."""
    for each in working:
        each.read()
    return agent.series("sweetpoint_channel_state").get(("memory", wanted)) == 1


def demand(agent: AgentRun) -> float:
    return agent.series("sweetpoint_channel_demand_ratio")["memory",]


def learned(agent: AgentRun, web: Reader) -> Callable[[], bool]:
    def reads_until_sure() -> bool:
        web.read()
        return is_sure(agent)

    return reads_until_sure


def is_held(node: ReadersNode, agent: AgentRun) -> bool:
    """Whether best-effort work keeps less memory for the refaults of the service."""
    name = KNOBS[node.memory.version]
    held = [each for each in agent.status()["in_force"]["knobs"] if each["knob"] == name]
    return any((each["service"], each["indicator"]) == ("web", "refaults") for each in held)


@pytest.mark.thorough
def test_a_working_set_that_is_pushed_out_comes_back_once_its_normal_is_learned(
    node: ReadersNode, readers: tuple[Reader, Reader], *arguments: str
) -> None:
    web, job = readers
    with AgentRun(node, *arguments, module=QUICK).ready() as agent:
        eventually("a sweet point", learned(agent, web))
        assert demand(agent) == 0
        eventually("a squeeze", lambda: state(agent, "squeeze", job, web) and demand(agent) > 0)

        def keeps_its_pages() -> bool:
            job.read()
            before = node.kernel_refaults()
            web.read()
            return is_held(node, agent) and node.kernel_refaults() - before < A_TENTH

        eventually("less page cache of best-effort work, more of the service", keeps_its_pages)
        assert job.process.poll() is None


@pytest.mark.thorough
def test_a_service_at_its_own_limit_takes_nothing_after_learning_either(
    node: ReadersNode, readers: tuple[Reader, Reader], *arguments: str
) -> None:
    web, _ = readers
    with AgentRun(node, *arguments, module=QUICK).ready() as agent:
        eventually("a sweet point", learned(agent, web))
        node.limit(node.below / "web", SERVICE_MIB // 2)
        eventually("its own limit", lambda: state(agent, "self", web))

        def is_not_squeezed() -> None:
            assert not state(agent, "squeeze", web)

        agent.watch(10, is_not_squeezed)
        assert node.kernel_refaults() > 0
        assert demand(agent) == 0
        assert not is_held(node, agent)


@pytest.mark.thorough
def test_nothing_is_taken_before_the_normal_is_learned(
    node: ReadersNode, readers: tuple[Reader, Reader]
) -> None:
    web, job = readers

    def has_refaults() -> bool:
        job.read()
        web.read()
        return node.kernel_refaults() > 1000

    eventually("refaults", has_refaults)
    with AgentRun(node).ready() as agent:

        def is_not_squeezed() -> None:
            assert not state(agent, "squeeze", job, web)

        # A sweet point takes 30 windows at least.
        agent.watch(20, is_not_squeezed)
        assert not is_sure(agent)
        assert demand(agent) == 0
