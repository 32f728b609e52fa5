# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint advise`` says of requests, limits and overcommit."""

import json

from controller.agent.history.sizes import LEAST_NS, Amounts, ServiceUse, ServiceUses
from controller.cli.advise_sizes import (
    forecast_lines,
    plain_forecast,
    plain_sizes,
    present_limits,
    size_lines,
)
from controller.core.model import QosClass
from controller.core.units import MIB
from controller.demo.simulated_knobs import make_workload
from controller.host.facts import boot_id
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


def test_each_service_has_its_figures_with_their_evidence() -> None:
    throttled = use("slow", throttled_ns=LEAST_NS // 2)
    limits = {"db": Amounts(None, 512 * MIB), "slow": Amounts(0.3, None)}
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
    lines = list(size_lines(uses(use("db")), {"db": Amounts(None, 400 * MIB)}))
    assert lines[-1].endswith(
        "now 400MiB: a fifth above its peak; its peak was 80MiB above its limit of now"
    )
    lines = list(size_lines(uses(use("db")), {}))
    assert lines[-1].endswith("now N/A: a fifth above its peak")


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
