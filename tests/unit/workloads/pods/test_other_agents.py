# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Detection of other agents on the node: what counts as evidence, and what does not."""

from pathlib import Path
from typing import Any, Literal

import pytest

from controller.core.knob_values import format_cpuset
from controller.core.model import CgroupId, Knob
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, possible_cpus
from controller.host.memory import MemoryHierarchy
from controller.workloads.pods.classify import ClassRules
from controller.workloads.pods.other_agents import OtherAgents
from controller.workloads.pods.pod import Owner, Pod

LEVEL = "/kubepods/besteffort"
RESCTRL = {Knob.RESCTRL_GROUP, Knob.LLC_WAYS, Knob.MBA}
BATCH = {"node.koordinator.sh/extended-resource-spec": "{}"}


def pod(**changes: Any) -> Pod:
    uid = "0b8d3a52-3f0e-4c6e-9d7a-1f2e3d4c5b6a"
    fields = {"uid": uid, "namespace": "shop", "name": "p", "priority": 0}
    return Pod(**(fields | {"qos_class": "BestEffort"} | changes))  # type: ignore[arg-type]


KOORDLET = pod(namespace="koordinator-system", labels={"koord-app": "koordlet"})
KATALYST = pod(
    namespace="kube-system", owner=Owner(kind="DaemonSet", name="katalyst-agent"), name="k"
)
PRETENDER = pod(labels={"koord-app": "koordlet"}, owner=Owner(kind="DaemonSet", name="koordlet"))


class Host:
    """The cgroup of the BestEffort pods as one kernel has it, and a resctrl directory."""

    def __init__(self, path: Path, version: Literal["v1", "v2"]) -> None:
        name = "v2" if version == "v2" else "cpu"
        layout = CgroupLayout(hierarchy=name, mount=path, version=version, unified=None)
        self.level = path / LEVEL[1:]
        self.level.mkdir(parents=True)
        self.resctrl = path / "resctrl"
        self.agents = OtherAgents(
            layout, ClassRules(), self.resctrl, MemoryHierarchy(version, path)
        )
        self.cgroup = CgroupId(name, self.level.stat().st_ino)
        self.ours: set[tuple[CgroupId, Knob]] = set()

    def ceded(self, *pods: Pod, at_s: int = 0) -> dict[Knob, str]:
        self.agents.poll(
            at_s * NS_PER_SEC, pods, [LEVEL], lambda cgroup, knob: (cgroup, knob) in self.ours
        )
        return dict(self.agents.ceded)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, "v2")


@pytest.mark.parametrize(
    ("version", "name", "free", "value", "knob"),
    [
        ("v1", "cpu.cfs_quota_us", "-1", "50000", Knob.CPU_QUOTA),
        ("v2", "cpu.max", "max 100000", "50000 100000", Knob.CPU_QUOTA),
        ("v1", "cpu.idle", "0", "1", Knob.SCHED_IDLE),
        ("v2", "cpu.idle", "0", "1", Knob.SCHED_IDLE),
        ("v2", "cpuset.cpus", format_cpuset(possible_cpus()), "0,2", Knob.CPUSET),
        ("v2", "cpuset.cpus", "", "0,2", Knob.CPUSET),
        ("v2", "memory.high", "max", "1073741824", Knob.MEMORY_HIGH),
        ("v2", "memory.max", "max", "1073741824", Knob.MEMORY_MAX),
        (
            *("v1", "memory.limit_in_bytes", "9223372036854771712", "1073741824"),
            Knob.MEMORY_MAX,
        ),
    ],
)
def test_values_that_kubelet_does_not_write(
    tmp_path: Path, version: Literal["v1", "v2"], name: str, free: str, value: str, knob: Knob
) -> None:
    host = Host(tmp_path, version)
    file = host.level / name
    file.write_text(f"{free}\n")
    assert host.ceded(KOORDLET) == {}
    file.write_text(f"{value}\n")
    reason = f"set {name} of {LEVEL}"
    assert host.ceded() == {knob: f"another program {reason}"}
    assert host.ceded(KOORDLET) == {knob: f"koordlet {reason}"}


def test_the_reason_does_not_depend_on_the_value(host: Host) -> None:
    found = []
    for quota in (50000, 60000, 70000):
        (host.level / "cpu.max").write_text(f"{quota} 100000\n")
        found.append(host.ceded(KOORDLET))
    assert found[0] and found == found[:1] * 3


def test_values_of_the_agent_itself_are_no_evidence(host: Host) -> None:
    (host.level / "cpu.idle").write_text("1\n")
    host.ours = {(host.cgroup, Knob.SCHED_IDLE)}
    assert host.ceded(KOORDLET) == {}
    (host.level / "cpu.max").write_text("1000 10000\n")
    assert set(host.ceded(KOORDLET)) == {Knob.CPU_QUOTA}


@pytest.mark.parametrize(
    ("agent", "group", "expected"),
    [
        (KOORDLET, "BE", RESCTRL),
        (KATALYST, "dedicated", RESCTRL),
        (KATALYST, "BE", set()),
        (KOORDLET, "sweetpoint-best-effort", set()),
        (PRETENDER, "BE", set()),
        (pod(), "BE", set()),
    ],
)
def test_resctrl_groups(host: Host, agent: Pod, group: str, expected: set[Knob]) -> None:
    (host.resctrl / group).mkdir(parents=True)
    (host.resctrl / group / "schemata").write_text("L3:0=fff\n")
    assert set(host.ceded(agent)) == expected


def test_batch_resources_count_only_where_koordlet_runs(host: Host) -> None:
    worker = pod(annotations=BATCH)
    assert host.ceded(worker) == {}
    assert host.ceded(worker, PRETENDER) == {}
    assert host.ceded(worker, KATALYST) == {}
    assert set(host.ceded(worker, KOORDLET)) == {Knob.CPU_QUOTA}


def test_evidence_expires(host: Host) -> None:
    file = host.level / "cpu.max"
    file.write_text("50000 100000\n")
    assert host.ceded(at_s=0)
    file.write_text("max 100000\n")
    assert host.ceded(at_s=300)
    assert host.ceded(at_s=301) == {}


def test_no_evidence_with_kubelet_alone_or_without_cgroups(host: Host) -> None:
    (host.level / "cpu.max").write_text("max 100000\n")
    (host.level / "cpu.idle").write_text("0\n")
    (host.level / "memory.high").write_text("max\n")
    assert host.ceded(pod()) == {}
    host.level.rename(host.level.parent / "gone")
    assert host.ceded(pod()) == {}
