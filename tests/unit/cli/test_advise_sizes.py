# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint advise`` says of requests, limits and overcommit."""

import json
from pathlib import Path

import pytest

from actuators.cpu import CpuQuota
from actuators.memory_io import MemoryMax
from controller.agent.history.sizes import LEAST_NS, Amounts, ServiceUse, ServiceUses
from controller.cli.advise_limits import InnerLimit, PresentLimits, present_limits
from controller.cli.advise_sizes import (
    forecast_lines,
    plain_forecast,
    plain_sizes,
    size_lines,
)
from controller.core.model import CgroupId, QosClass
from controller.core.units import MIB
from controller.demo.simulated_knobs import make_workload
from controller.host.facts import boot_id
from controller.host.memory import NO_LIMIT_V1_BYTES
from controller.kube.capacity import ForecastRecord

HOUR_NS = 3600 * 10**9


def uses(*services: ServiceUse) -> ServiceUses:
    found = ServiceUses(0, 0)
    found.services = {each.service: each for each in services}
    return found


def use(service: str, **changes: object) -> ServiceUse:
    made = ServiceUse(
        service,
        observed_ns=2 * LEAST_NS,
        steps_ns={30: 2 * LEAST_NS},
        peak_cpus=0.3,
        busy_ns=2 * LEAST_NS,
        peak_memory_bytes=480 * MIB,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def own(cpus: float | None, memory_bytes: int | None) -> PresentLimits:
    return PresentLimits(Amounts(cpus, memory_bytes))


def test_each_service_has_its_figures_with_their_evidence() -> None:
    throttled = use("slow", throttled_ns=LEAST_NS // 2)
    limits = {"db": own(None, 512 * MIB), "slow": own(0.3, None)}
    found = uses(throttled, use("db", limit_hits=3))
    found.workloads = tuple(
        make_workload("db", number, QosClass.LS, "default")._replace(
            request_cpus=cpus, request_memory_bytes=256 * MIB
        )
        for number, cpus in ((1, 0.5), (2, None))
    )
    assert list(size_lines(found, limits)) == [
        "",
        "db: requests and limits of one workload, from 2h",
        "    cpu request     0.30cpu, now 0.50cpu: for 95% of the time it used no more; its peak "
        "was 0.30cpu",
        "    cpu limit       none is needed, now none: it was throttled for 0.0% of its time",
        "    memory request  480MiB, now 256MiB: its peak",
        "    memory limit    576MiB, now 512MiB: a fifth above its peak; its peak left 32MiB (6%) "
        "of its limit; it reached its limit 3 times",
        "",
        "slow: requests and limits of one workload, from 2h",
        "    cpu request     0.30cpu, now N/A: for 95% of the time it used no more; its peak was "
        "0.30cpu",
        "    cpu limit       0.36cpu or none, now 0.30cpu: it was throttled for 25.0% of its time",
        "    memory request  480MiB, now N/A: its peak",
        "    memory limit    576MiB, now none: a fifth above its peak",
    ]
    plain = {each["service"]: each["requests_now"] for each in plain_sizes(found, limits)}
    assert plain == {"db": {"cpus": 0.5, "memory_bytes": 256 * MIB}, "slow": None}


def test_without_data_there_is_no_advice() -> None:
    new, dark = use("new", observed_ns=60 * 10**9), use("dark", busy_ns=0, peak_memory_bytes=None)
    lines = list(size_lines(uses(new, dark), {}))
    assert (
        lines[-1] == "new: requests and limits N/A. It was measured for 1min, and 1h is the least."
    )
    assert lines[3:5] == [
        "    cpu limit       N/A: whether it was throttled was not measured",
        "    memory          N/A: it was not measured",
    ]
    found = json.loads(json.dumps(plain_sizes(uses(new, dark), {})))
    assert [each["service"] for each in found] == ["dark", "new"]
    assert found[1]["advised"] is None and found[1]["least_observed_ns"] == LEAST_NS
    assert found[0]["advised"]["memory_limit_bytes"] is None
    assert found[0]["limits_now"] is None


def test_a_peak_above_a_lowered_limit() -> None:
    lines = list(size_lines(uses(use("db")), {"db": own(None, 400 * MIB)}))
    assert lines[-1].endswith(
        "now 400MiB: a fifth above its peak; its peak was 80MiB above its limit of now"
    )
    lines = list(size_lines(uses(use("db")), {}))
    assert lines[-1].endswith("now N/A: a fifth above its peak")


CONTAINER = "cri-containerd-" + "3f" * 32 + ".scope"


def test_a_container_with_a_limit_in_a_workload_without_one_is_named() -> None:
    limits = PresentLimits(
        Amounts(None, None), InnerLimit(0.4, CONTAINER), InnerLimit(256.0 * MIB, "worker")
    )
    found = uses(use("slow", throttled_ns=LEAST_NS // 2))
    lines = list(size_lines(found, {"slow": limits}))
    assert lines[3:] == [
        # A fifth above the limit of the container, which is higher than the peak.
        "    cpu limit       0.48cpu or none, now none, but 0.40cpu in container 3f3f3f3f3f3f: it "
        "was throttled for 25.0% of its time",
        "    memory request  480MiB, now N/A: its peak",
        "    memory limit    576MiB, now none, but 256MiB in its cgroup worker: a fifth above its "
        "peak",
    ]
    (plain,) = json.loads(json.dumps(plain_sizes(found, {"slow": limits})))
    assert plain["limits_now"] == {"cpus": None, "memory_bytes": None}
    assert plain["container_limits_now"] == {
        "cpus": 0.4,
        "cpus_of": CONTAINER,
        "memory_bytes": 256 * MIB,
        "memory_of": "worker",
    }


def test_of_several_workloads_the_lowest_container_counts() -> None:
    one = PresentLimits(Amounts(2.0, None), None, InnerLimit(5.0, "b"))
    other = PresentLimits(Amounts(None, None), InnerLimit(0.5, "c"), InnerLimit(4.0, "d"))
    for found in (one.lowest(other), other.lowest(one)):
        assert found.in_force == (2.0, None)
        assert found == ((2.0, None), (0.5, "c"), (4.0, "d"))
    assert other.in_force == (0.5, None)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_limits_of_containers_count_where_the_workload_has_none(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    knobs = CpuQuota(cpu, "cpu", "v1"), MemoryMax(memory, "memory", "v1")
    if version == "v2":
        memory = cpu
        knobs = CpuQuota(cpu, "v2", "v2"), MemoryMax(cpu, "v2", "v2")

    def make(path: str, cpus: float | None, limit_bytes: int | None) -> None:
        for folder in {cpu / path, memory / path}:
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").touch()
        quota_us = None if cpus is None else round(cpus * 100_000)
        if version == "v1":
            (cpu / path / "cpu.cfs_quota_us").write_text(f"{-1 if cpus is None else quota_us}\n")
            (cpu / path / "cpu.cfs_period_us").write_text("100000\n")
            limit = NO_LIMIT_V1_BYTES if limit_bytes is None else limit_bytes
            (memory / path / "memory.limit_in_bytes").write_text(f"{limit}\n")
        else:
            (cpu / path / "cpu.max").write_text(f"{quota_us or 'max'} 100000\n")
            (memory / path / "memory.max").write_text(f"{limit_bytes or 'max'}\n")

    make("pod1", None, None)
    make("pod1/sandbox", None, None)
    make(f"pod1/{CONTAINER}", 0.4, 256 * MIB)
    make("pod1/other", 0.5, 128 * MIB)
    make("pod1/other/nested", 0.1, MIB)  # of a tenant: not one of the containers
    (cpu / "pod1" / "bare").mkdir()  # without controllers
    make("pod2", 0.9, 384 * MIB)
    make(f"pod2/{CONTAINER}", 0.2, 64 * MIB)
    make("pod3", None, None)
    monkeypatch.setattr("controller.cli.advise_limits._knobs", lambda: knobs)
    found = uses()
    found.boot_id = boot_id()
    found.workloads = tuple(
        make_workload(name, 1, QosClass.LS, "default")._replace(
            service=name,
            path=f"/{name}",
            cgroup=CgroupId(knobs[0].hierarchy, (cpu / name).stat().st_ino),
        )
        for name in ("pod1", "pod2", "pod3")
    )
    assert present_limits(found) == {
        "pod1": (Amounts(None, None), (0.4, CONTAINER), (128.0 * MIB, "other")),
        "pod2": (Amounts(0.9, 384 * MIB), None, None),
        "pod3": (Amounts(None, None), None, None),
    }


def test_limits_are_read_only_of_cgroups_of_this_boot() -> None:
    found = uses()
    found.workloads = (make_workload("gone", 2**60, QosClass.LS, "default"),)
    for boot in ("another boot", boot_id()):
        found.boot_id = boot
        assert present_limits(found) == {}


def test_what_overcommit_is_safe_and_how_often_the_forecast_was_broken() -> None:
    cells: list[tuple[tuple[int, int], ...]] = [((39, 3600),)] * 168
    cells[5] = ((69, 3600),)
    record = ForecastRecord(400, 300, 3, tuple(cells))
    assert list(forecast_lines({"cpu": record}, 0)) == [
        "",
        "Capacity: other work used more cpu than forecast and reserve in 3 of 300 hours (1%).",
        "Overcommit of cpu: other work is expected to use up to 40% of the node in the next half "
        "hour, in the next 24h up to 70%. Best-effort work can have the rest less the reserve.",
    ]
    assert plain_forecast(record, 5 * HOUR_NS)["expected_use_ratio"] == 0.7
    later = plain_forecast(record, 6 * HOUR_NS)
    assert (later["expected_use_ratio"], later["expected_use_day_ratio"]) == (0.4, 0.4)


def test_a_node_without_a_forecast_and_one_that_is_new() -> None:
    assert list(forecast_lines({}, 0))[-1].startswith("Overcommit: N/A. There is no forecast")
    lines = list(forecast_lines({"memory": ForecastRecord(3)}, 0))
    assert lines[1].endswith("in 0 of 0 hours (N/A).")
    assert lines[2] == "Overcommit of memory: N/A. No day had this hour yet."
