# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Classes for disks: fixed values of services beside best-effort work that the loop squeezes."""

from dataclasses import replace
from typing import Any

import pytest

from controller.core.model import (
    Knob,
    KnobValue,
    Mode,
    Pause,
    QosClass,
    Target,
    TargetKind,
    Workload,
)
from controller.core.settings import IoClass, Settings
from controller.core.writes.io_classes import io_class_states
from tests.sim.plants import DiskNode
from tests.support.loops.closed_loop import ClosedLoop
from tests.support.loops.resource_loop import resource_settings, writes

GOLD = IoClass(800, KnobValue("8:0 wbps=1000"))
LIMITED = KnobValue("8:0 wbps=1000;8:16 rbps=5")


class Site:
    """A node with a service whose cgroup has a limit of another program on a second disk."""

    def __init__(self, io_class: str = "", path: str = "/web", **classes: IoClass) -> None:
        self.node = DiskNode(1)
        self.node.service = self.node.service._replace(path=path)
        cgroup = self.node.service.cgroup
        self.place = cgroup.id
        target = Target(TargetKind.CGROUP, cgroup.hierarchy, cgroup.id, self.node.service.path)
        self.node.knobs.add(target, Knob.IO_WEIGHT, KnobValue("100"))
        self.node.knobs.add(target, Knob.IO_MAX, KnobValue("8:16 rbps=5"))
        self.loop = ClosedLoop(self.node, self.settings(io_class, **classes))

    def settings(self, io_class: str, **classes: IoClass) -> Settings:
        settings = resource_settings(self.node)
        profile = replace(settings.profiles["default"], io_class=io_class)
        return replace(settings, profiles={"default": profile}, io_classes=classes)

    def change(self, **fields: Any) -> None:
        """Change fields of the workload of the service."""
        self.node.service = self.node.service._replace(**fields)
        self.loop.planner.set_workloads(self.node.workloads)

    @property
    def values(self) -> tuple[str, str]:
        """Weight and limits of the service."""
        knobs = self.node.knobs
        return knobs.value(self.place, Knob.IO_WEIGHT), knobs.value(self.place, Knob.IO_MAX)

    def held(self) -> set[Knob]:
        """What is held of the service, by the record."""
        record = self.loop.planner.settle(())
        assert not [each for each in record.limits if each.target.id == self.place]
        return {each.knob for each in record.knobs if each.target.id == self.place}


OWN = ("100", "8:16 rbps=5")


def test_the_class_of_a_profile_holds_while_the_loop_squeezes_best_effort_work() -> None:
    site = Site("gold", gold=GOLD)
    plans = site.loop.run(30)
    assert site.values == ("800", LIMITED)
    assert site.held() == {Knob.IO_WEIGHT, Knob.IO_MAX}
    ours = [each for each in writes(plans) if each.target.id == site.place]
    assert {each.reason for each in ours} == {"io class gold"} and len(ours) == 2
    of_work = [each for each in writes(plans, Knob.IO_MAX) if each.target.id != site.place]
    assert of_work, "the loop did not squeeze"
    site.loop.reconfigure(site.settings(""))
    site.loop.run(1)
    assert site.values == OWN
    assert not site.held()


def test_the_class_of_the_workload_comes_before_that_of_the_profile() -> None:
    site = Site("gold", gold=GOLD, bulk=IoClass(20))
    site.change(io_class="bulk")
    site.loop.run(1)
    assert site.values == ("20", "8:16 rbps=5")
    site.change(io_class="")
    site.loop.run(1)
    assert site.values == ("800", LIMITED)
    # The new values of the class.
    site.loop.reconfigure(site.settings("gold", gold=IoClass(limits=KnobValue("8:16 rbps=9"))))
    site.loop.run(1)
    assert site.values == ("100", "8:16 rbps=9")


def test_system_work_may_have_a_class_and_best_effort_work_has_none() -> None:
    site = Site(gold=IoClass(800))
    site.change(io_class="gold", qos=QosClass.SYSTEM)
    site.loop.run(1)
    assert site.values[0] == "800"
    site.change(qos=QosClass.BE)
    site.loop.run(1)
    assert site.values[0] == "100"


def test_work_that_becomes_best_effort_loses_its_class_also_where_no_loop_moves_disks() -> None:
    site = Site("gold", gold=GOLD)
    settings = site.settings("gold", gold=GOLD)
    host = replace(settings.host, disks=(), io_weight=False)
    site.loop.reconfigure(replace(settings, host=host))
    site.loop.run(1)
    assert site.values == ("800", LIMITED)
    site.change(qos=QosClass.BE)
    site.loop.run(1)
    assert site.values == OWN


def test_an_unknown_class_changes_nothing() -> None:
    site = Site("lead", gold=GOLD)
    site.loop.run(1)
    assert site.values == OWN
    (lead, gold) = io_class_states(
        site.loop.settings, site.node.workloads, site.node.knobs.readings()
    )
    assert (lead.name, lead.workloads, lead.present) == ("lead", 1, False)
    assert "no such class" in lead.problem
    assert (gold.name, gold.workloads) == ("gold", 0)


@pytest.mark.parametrize("everything", [True, False])
def test_a_pause_undoes_the_class(everything: bool) -> None:
    site = Site("gold", gold=GOLD)
    site.loop.run(1)
    service = site.node.service.service
    site.loop.pause = Pause(everything=True) if everything else Pause(services=(service,))
    site.loop.run(1)
    assert site.values == OWN
    site.loop.pause = None
    site.loop.run(1)
    assert site.values == ("800", LIMITED)


def test_a_limit_of_another_program_is_kept_and_one_in_its_place_is_written_again() -> None:
    site = Site("gold", gold=GOLD)
    site.loop.run(1)
    site.node.knobs.write(site.place, Knob.IO_MAX, KnobValue("8:32 rbps=7"))
    site.loop.run(1)
    assert site.values[1] == "8:0 wbps=1000;8:32 rbps=7"


def test_a_weight_that_systemd_puts_back_is_written_again() -> None:
    site = Site("gold", path="/system.slice/web.service", gold=GOLD)
    for _ in range(4):
        site.node.knobs.write(site.place, Knob.IO_WEIGHT, KnobValue("100"))
        site.loop.run(11)
        assert site.values[0] == "800"
    # Any other weight is that of another program, which wants it so.
    site.node.knobs.write(site.place, Knob.IO_WEIGHT, KnobValue("300"))
    site.loop.run(11)
    assert site.values[0] == "300"


def states(settings: Settings, workloads: tuple[Workload, ...], site: Site) -> tuple[int, bool]:
    (found,) = io_class_states(settings, workloads, site.node.knobs.readings())
    return found.lacking, found.present


def test_the_state_says_whether_the_values_are_in_force() -> None:
    site = Site("gold", gold=GOLD)
    settings = site.loop.settings
    assert states(settings, site.node.workloads, site) == (1, False)
    site.loop.run(1)
    assert states(settings, site.node.workloads, site) == (0, True)
    assert states(settings, (), site) == (0, False)
    half = replace(settings, io_classes={"gold": GOLD._replace(problem="no such disk")})
    assert states(half, site.node.workloads, site) == (0, False)
    observing = Site("gold", gold=GOLD)
    observing.loop.reconfigure(replace(observing.loop.settings, mode=Mode.OBSERVE))
    observing.loop.run(2)
    assert observing.values == OWN
