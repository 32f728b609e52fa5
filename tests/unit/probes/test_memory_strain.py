# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Refaults and hits of limits of services, from files in the formats of both cgroup versions."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from controller.core.model import CgroupId, IndicatorName, QosClass, Workload
from controller.core.settings import Settings
from controller.core.units import NS_PER_SEC
from controller.host.memory import MemoryHierarchy
from controller.probes.memory_strain import Strain, StrainMeter, parse_limit_hits, parse_refaults
from tests.support.loops.closed_loop import make_settings, make_spec

V1 = """\
cache 4096
workingset_refault_anon 1
workingset_refault_file 20
total_cache 8192
total_workingset_refault_anon 300
total_workingset_refault_file 4000
total_workingset_nodereclaim 9
"""
V2 = "anon 1\nworkingset_refault_anon 5\nworkingset_refault_file 60\nworkingset_activate_file 8\n"
EVENTS = "low 100\nhigh 1\nmax 20\noom 300\noom_kill 4000\noom_group_kill 0\n"


def asking(*names: IndicatorName) -> Settings:
    settings = make_settings()
    spec = replace(make_spec(), sweet_point=1.0)
    base = settings.profiles["default"]
    profile = replace(base, indicators=tuple(replace(spec, name=each) for each in names))
    return replace(settings, profiles={"default": profile, "other": base})


def service(root: Path, name: str, profile: str = "default") -> Workload:
    folder = root / name
    folder.mkdir()
    identity = CgroupId("cpu", folder.stat().st_ino)
    return Workload(name, identity, f"/{name}", QosClass.LS, name, profile)


def meter_for(root: Path, version: Literal["v1", "v2"], *workloads: Workload) -> StrainMeter:
    meter = StrainMeter(MemoryHierarchy(version, root))
    meter.set_workloads(workloads)
    meter.reconfigure(asking(IndicatorName.REFAULTS))
    return meter


@pytest.mark.parametrize(
    ("text", "refaults"),
    [
        (V1, 4300),
        (V2, 65),
        ("workingset_refault 7\nworkingset_activate 8\n", 7),  # v2 before 5.9
        ("cache 4096\ntotal_cache 4096\n", None),
        ("", None),
    ],
)
def test_refaults_are_those_of_all_pages_and_cgroups_below(text: str, refaults: int | None) -> None:
    assert parse_refaults(text.encode()) == refaults


def test_hits_are_those_of_both_limits() -> None:
    assert parse_limit_hits(EVENTS.encode()) == 21
    assert parse_limit_hits(b"low 1\noom 2\n") is None


def test_on_v2_the_events_of_the_service_are_read(tmp_path: Path) -> None:
    web = service(tmp_path, "web")
    (tmp_path / "web/memory.stat").write_text(V2)
    (tmp_path / "web/memory.events").write_text(EVENTS)
    meter = meter_for(tmp_path, "v2", web)
    meter.poll(0, None)
    assert meter.workloads == {web.cgroup: Strain(65, 21)}
    assert meter.changed == [web.cgroup]


def test_on_v1_limits_of_containers_are_those_of_the_service(tmp_path: Path) -> None:
    web, bare = service(tmp_path, "web"), service(tmp_path, "bare")
    (tmp_path / "web/memory.stat").write_text(V1)
    for name, count in (("", 1), ("one", 20), ("two", 300)):
        folder = tmp_path / "web" / name
        folder.mkdir(exist_ok=True)
        (folder / "memory.failcnt").write_text(f"{count}\n")
    meter = meter_for(tmp_path, "v1", web, bare)
    meter.poll(0, None)
    assert meter.workloads == {web.cgroup: Strain(4300, 321), bare.cgroup: Strain(None, None)}


def test_on_v1_the_hits_are_read_with_new_refaults_only(tmp_path: Path) -> None:
    web = service(tmp_path, "web")
    stat, hits = tmp_path / "web/memory.stat", tmp_path / "web/memory.failcnt"
    meter = meter_for(tmp_path, "v1", web)
    found = []
    for read_ns, (refaults, count) in enumerate([(1, 5), (1, 6), (2, 7), (2, 8)]):
        stat.write_text(f"workingset_refault_file 9\ntotal_workingset_refault_file {refaults}\n")
        hits.write_text(f"{count}\n")
        meter.poll(read_ns, [web.cgroup])
        found.append((meter.workloads[web.cgroup], list(meter.changed)))
    assert found == [
        (Strain(1, 5), [web.cgroup]),
        (Strain(1, 5), []),
        (Strain(2, 7), [web.cgroup]),
        (Strain(2, 7), []),
    ]


def test_only_services_whose_profile_asks_are_read(tmp_path: Path) -> None:
    web, other = service(tmp_path, "web"), service(tmp_path, "other", "other")
    job = service(tmp_path, "job")._replace(qos=QosClass.BE)
    meter = meter_for(tmp_path, "v2", web, other, job)
    meter.poll(0, None)
    assert meter.workloads.keys() == {web.cgroup}
    meter.reconfigure(asking(IndicatorName.PSI_IO))
    meter.poll(NS_PER_SEC, None)
    assert meter.workloads == {}
    meter.reconfigure(asking(IndicatorName.PSI_MEMORY))
    meter.poll(2 * NS_PER_SEC, None)
    assert meter.workloads.keys() == {web.cgroup}


def test_a_service_is_read_once_for_each_time_of_reading(tmp_path: Path) -> None:
    web = service(tmp_path, "web")
    stat = tmp_path / "web/memory.stat"
    stat.write_text("workingset_refault_file 1\n")
    meter = meter_for(tmp_path, "v2", web)
    found = []
    for read_ns, count in ((0, 1), (0, 2), (NS_PER_SEC, 3), (NS_PER_SEC, 4), (2 * NS_PER_SEC, 5)):
        stat.write_text(f"workingset_refault_file {count}\n")
        meter.poll(read_ns, [web.cgroup])
        found.append((meter.workloads[web.cgroup].refaults, list(meter.changed)))
    assert found == [(1, [web.cgroup]), (1, []), (3, [web.cgroup]), (3, []), (5, [web.cgroup])]


def test_without_the_controller_nothing_is_read(tmp_path: Path) -> None:
    meter = StrainMeter(MemoryHierarchy("v2", None))
    meter.set_workloads([service(tmp_path, "web")])
    meter.reconfigure(asking(IndicatorName.REFAULTS))
    meter.poll(0, None)
    assert meter.workloads == {}
