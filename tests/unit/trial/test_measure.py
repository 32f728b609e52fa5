# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.trial.blocks import Arm, Work
from controller.trial.measure import CounterResetError, Meter

NS = 10**9
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("plan", "loops", "suffered", "workloads", "agent", "service", "time_ns"),
                    *("value", "cluster", "completed", "network_bytes", "qos"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def page(ran_s: float, **fields: Any) -> dict[str, Any]:
    return {"time_ns": round(ran_s * NS), "ran_ns": round(ran_s * NS), **fields}


def jobs(**oncpu_s: float) -> list[dict[str, Any]]:
    return [
        {"path": name, "qos": "best-effort", "oncpu_ns": seconds * NS}
        for name, seconds in oncpu_s.items()
    ]


def suffered(**seconds: float) -> list[dict[str, Any]]:
    """Return the time of service web by channel, in two states."""
    return [
        {"service": "web", "channel": channel, "state": state, "time_ns": time_s / 2 * NS}
        for channel, time_s in seconds.items()
        for state in ("squeeze", "not-be")
    ]


def loop(value: float | None, status: str = "fresh", is_time: bool = False) -> dict[str, Any]:
    each = {"service": "web", "indicator": "cpi", "status": status, "value": value}
    return {"loops": [{**each, "is_time": is_time}]}


def test_work_of_jobs_that_come_and_go() -> None:
    meter = Meter(Arm.ENFORCE, page(0, workloads=jobs(old=100)), 0.0)
    meter.take(page(2, workloads=jobs(old=101, new=0.5)))
    meter.take(page(4, workloads=jobs(new=1.5)))
    meter.take(page(10, workloads=jobs(new=1.5, again=1.0)))
    assert meter.block().best_effort_cpus == pytest.approx((1 + 0.5 + 1 + 1) / 10)


def test_other_work_counts_where_it_is_measured() -> None:
    def at(instructions: int | None, network: int, completed: int) -> dict[str, Any]:
        job = {"instructions": instructions, "network_bytes": network, "io_bytes": None}
        workloads = [{"path": "job", "qos": "best-effort", **job}]
        # The bytes of a service are no work of jobs.
        workloads.append({"path": "web", "qos": "latency-sensitive", "network_bytes": network})
        return {"workloads": workloads, "cluster": {"completed": completed}}

    meter = Meter(Arm.ENFORCE, page(0, **at(None, 1_000_000, 7)), 0.0)
    meter.take(page(5, **at(None, 3_000_000, 7)))
    meter.take(page(10, **at(4_000_000_000, 6_000_000, 8)))
    # A service without a CPU time has no load that is known.
    assert meter.block().service_cpus == 0.0
    assert meter.block().work == {
        Work.INSTRUCTIONS: pytest.approx(0.4),
        Work.NETWORK: pytest.approx(0.5),
        Work.PODS: pytest.approx(360.0),
    }


def test_the_load_of_services_is_their_cpu_time() -> None:
    def at(web_s: float) -> dict[str, Any]:
        web = {"path": "web", "qos": "latency-sensitive", "oncpu_ns": web_s * NS}
        return {"workloads": [web, *jobs(job=web_s)]}

    meter = Meter(Arm.PAUSE, page(0, **at(3.0)), 0.0)
    meter.take(page(10, **at(7.0)))
    assert meter.block().service_cpus == pytest.approx(0.4)


def test_outside_a_cluster_no_pod_completes() -> None:
    meter = Meter(Arm.ENFORCE, page(0), 0.0)
    meter.take(page(10, cluster=None))
    assert meter.block().work == {}


def test_a_service_counts_on_its_worst_channel() -> None:
    meter = Meter(Arm.PAUSE, page(0, suffered=suffered(cpu=5, io=1)), 0.0)
    meter.take(page(10, suffered=suffered(cpu=6, io=4), plan=loop(1.0)))
    assert meter.block().suffered_ratio == {"web": pytest.approx(0.3)}


def test_a_service_that_never_suffered_is_one_with_nothing() -> None:
    meter = Meter(Arm.PAUSE, page(0), 0.0)
    meter.take(page(10, plan=loop(1.0)))
    assert meter.block().suffered_ratio == {"web": 0.0}


def test_only_fresh_values_count_and_each_tick_once() -> None:
    meter = Meter(Arm.ENFORCE, page(0), 0.0)
    for ran_s, each in ((1, loop(1.0)), (1, loop(9.0)), (2, loop(9.0, "stale")), (3, loop(None))):
        meter.take(page(ran_s, plan=each))
    meter.take(page(4, plan=loop(2.0)))
    assert meter.block().values == {"web cpi": 1.5}


def test_times_are_in_ms() -> None:
    meter = Meter(Arm.ENFORCE, page(0), 0.0)
    meter.take(page(1, plan=loop(2e6, is_time=True)))
    assert meter.block().values == {"web cpi (ms)": 2.0}


def test_another_run_of_the_agent_is_no_measurement() -> None:
    meter = Meter(Arm.ENFORCE, page(100), 0.0)
    with pytest.raises(CounterResetError):
        meter.take(page(1))


@given(st.lists(st.dictionaries(st.sampled_from(["plan", "suffered", "workloads", "agent"]), JSON)))
def test_any_page_gives_numbers(pages: list[dict[str, Any]]) -> None:
    """An agent of another version has other pages."""
    meter = Meter(Arm.ENFORCE, page(0), 0.0)
    for number, fields in enumerate(pages):
        meter.take(page(number + 1, **fields))
    block = meter.block()
    assert block.best_effort_cpus >= 0
    assert all(0 <= each <= 1 for each in block.suffered_ratio.values())
