# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with probes, configuration and clock."""

from dataclasses import replace

import pytest

from controller.agent.source_problems import (
    ClockWatch,
    config_problems,
    needs_traffic,
    probe_problems,
)
from controller.core.decision import ChannelState, IndicatorStatus, Plan
from controller.core.model import CgroupId, Channel, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.sources import SourceState
from tests.support.loops.closed_loop import make_settings
from tests.support.reports import DEMAND, LOOP

PLAN = Plan(time_ns=0)
BOOT_NS = 1000 * NS_PER_SEC
WALL_NS = 1_700_000_000 * NS_PER_SEC


def probes(
    problems: dict[str, str], unsupported: str = "", plan: Plan = PLAN, *, traffic: bool = False
) -> list[tuple[SourceState, str]]:
    found = probe_problems(problems, unsupported, plan, traffic=traffic)
    return [(each.state, each.message.partition(":")[0]) for each in found]


def test_the_sched_probe_is_needed() -> None:
    assert probes({}) == []
    assert probes({"sched": "no permission"}) == [(SourceState.UNSEEN, "sched is off")]


def test_on_a_kernel_that_cannot_run_it_the_agent_is_degraded() -> None:
    ((state, text),) = probes({"sched": "no permission"}, "this kernel has no BTF")
    assert state is SourceState.DEGRADED
    assert text.startswith("this kernel has no BTF; nothing is measured")


def test_other_probes_are_needed_where_something_uses_them() -> None:
    off = {"net": "no cgroup2", "counter cycles": "no PMU"}
    assert probes(off) == [(SourceState.DEGRADED, "counter cycles is off")]
    assert (SourceState.DEGRADED, "net is off") in probes(off, traffic=True)


def test_a_channel_without_data_is_told() -> None:
    demands = (
        replace(DEMAND, state=ChannelState.SAFE),
        replace(DEMAND, channel=Channel.NETWORK, state=ChannelState.SAFE),
        replace(DEMAND, channel=Channel.IO, state=ChannelState.FREE),
    )
    plan = replace(PLAN, demands=demands, safe=True)
    assert probes({}, plan=plan) == [(SourceState.DEGRADED, "no new data on cpu, network")]
    assert len(probes({"sched": "off"}, plan=plan)) == 1, "one reason is enough"


def test_a_service_that_lost_its_figure_is_told() -> None:
    lost = replace(LOOP, service="web", status=IndicatorStatus.LOST)
    plan = replace(PLAN, loops=(lost, replace(LOOP, service="api")))
    ((state, text),) = probes({}, plan=plan)
    assert state is SourceState.DEGRADED
    assert text.startswith("no figure of web any more")
    wrong = replace(lost, status=IndicatorStatus.IMPLAUSIBLE)
    ((state, text),) = probes({}, plan=replace(PLAN, loops=(wrong,)))
    assert state is SourceState.DEGRADED
    assert text.startswith("the figure of web jumped")


def test_traffic_is_needed_for_a_sweet_point_on_the_network_channel() -> None:
    settings = make_settings()
    (name, profile) = next(iter(settings.profiles.items()))
    web = Workload("web", CgroupId("v2", 1), "/web", QosClass.LS, "web", name)
    (first, *_) = profile.indicators
    assert not needs_traffic(settings, (web,))
    on_network = replace(profile, indicators=(replace(first, channel=Channel.NETWORK),))
    settings = replace(settings, profiles={name: on_network})
    assert needs_traffic(settings, (web,))
    assert not needs_traffic(settings, ())
    assert not needs_traffic(settings, (web._replace(qos=QosClass.BE),))


def test_a_refused_configuration_is_told_in_one_line() -> None:
    assert not list(config_problems(""))
    (found,) = config_problems("config.yaml:3: unknown key\nconfig.yaml:4: another")
    assert "config.yaml:3: unknown key (and 1 more lines" in found.message
    assert "\n" not in found.message
    assert found.state is SourceState.DEGRADED


@pytest.fixture
def clock() -> ClockWatch:
    return ClockWatch()


def texts(clock: ClockWatch, boot_ns: int = BOOT_NS) -> list[str]:
    return [each.message.partition(":")[0] for each in clock.problems(boot_ns)]


def test_ticks_that_come_late_for_long_are_told(clock: ClockWatch) -> None:
    for _ in range(60):
        clock.update(late=True)
    assert not texts(clock)
    for _ in range(60):
        clock.update(late=True)
    assert texts(clock) == ["most ticks come late"]
    for _ in range(200):
        clock.update(late=False)
    assert not texts(clock)


def test_every_third_tick_is_no_problem(clock: ClockWatch) -> None:
    for number in range(1000):
        clock.update(late=number % 3 == 0)
        assert not texts(clock)


def test_a_wall_clock_that_is_set_is_told_for_ten_minutes(clock: ClockWatch) -> None:
    clock.compare(WALL_NS, BOOT_NS)
    clock.compare(WALL_NS + 3 * NS_PER_SEC, BOOT_NS + NS_PER_SEC)  # two seconds: slewed
    assert not texts(clock)
    boot_ns = BOOT_NS + 2 * NS_PER_SEC
    clock.compare(WALL_NS - 3600 * NS_PER_SEC, boot_ns)
    assert texts(clock, boot_ns) == ["the wall clock was set by -3604 s"]
    assert not texts(clock, boot_ns + 600 * NS_PER_SEC)


def test_a_suspended_host_has_a_steady_clock(clock: ClockWatch) -> None:
    clock.compare(WALL_NS, BOOT_NS)
    hour_ns = 3600 * NS_PER_SEC
    clock.compare(WALL_NS + hour_ns, BOOT_NS + hour_ns)
    assert not texts(clock, BOOT_NS + hour_ns)
