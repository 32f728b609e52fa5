# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The first sentence of a page: who suffers, what batch work may use, what it caused."""

from typing import Any

import pytest

from controller.page.summary import badge, first_sentence, health, knobs_sentence

JOB = {"name": "job", "path": "/batch/job", "qos": "best-effort", "limit_cpus": None}
LIMITED = {"name": "job", "cpus": 0.05, "channel": "cpu"}
SQUEEZED = {"cpus": 0.05, "limited": [LIMITED]}
FREE: dict[str, Any] = {"cpus": None, "limited": []}


def loop(service: str, ratio: float | None, status: str = "fresh") -> dict[str, Any]:
    value = None if ratio is None else ratio * 2e6
    return {"service": service, "status": status, "value": value, "sweet_point": 2e6}


def cause(service: str, be_share: float | None) -> dict[str, Any]:
    return {"channel": "cpu", "service": service, "be_share": be_share, "culprits": []}


def sentence(
    loops: list[dict[str, Any]],
    causes: tuple[dict[str, Any], ...] = (),
    *,
    in_force: dict[str, Any] = FREE,
    knobs: tuple[dict[str, Any], ...] = (),
    workloads: tuple[dict[str, Any], ...] = (JOB,),
    **fields: Any,
) -> str:
    plan = {"loops": loops, "causes": list(causes), "quota_granted_cpus": 0.07}
    status = {
        **{"ready": True, "mode": "enforce", "plan": plan, "in_force": in_force},
        **{"knobs": list(knobs), "workloads": list(workloads), **fields},
    }
    return first_sentence(status, 2).replace("\N{NO-BREAK SPACE}", " ")


def test_who_is_above_what_is_limited_and_what_that_caused() -> None:
    loops = [loop("web", 0.7), loop("web", 12.8)]
    held = {"mode": "enforce", "workloads": [JOB], "in_force": SQUEEZED}
    assert knobs_sentence(held, 2) == ("Batch work is limited to 0.05 of 2\N{NO-BREAK SPACE}CPUs.")
    assert sentence(loops, (cause("web", 0.11),), in_force=SQUEEZED) == (
        "1 of 1 services is above its sweet point (web, 12.8 times); "
        "batch work is limited to 0.05 of 2 CPUs; best-effort caused 11 % of it."
    )


def test_several_services_the_worst_first() -> None:
    loops = [
        loop(name, ratio) for name, ratio in zip("abcdef", (2, 5, 3, 4, 0.5, None), strict=True)
    ]
    assert sentence(loops, (cause("b", None), cause("a", 0.9))) == (
        "4 of 6 services are above their sweet points "
        "(b, 5.00 times; d, 4.00 times; c, 3.00 times; 1 more), 1 is not measured now; "
        "batch work is not limited; "
        "best-effort caused an unknown part of what b suffers."
    )


def test_all_is_well() -> None:
    assert sentence([loop("web", 0.5)]) == (
        "0 of 1 services are above their sweet points; batch work is not limited."
    )


@pytest.mark.parametrize("status", ["idle", "stale"])
def test_an_old_value_is_none(status: str) -> None:
    assert "None of 1 services is measured now" in sentence([loop("web", 9.0, status)])


def test_without_services_or_batch_work() -> None:
    assert sentence([], workloads=()) == "No service has an indicator; there is no batch work."


def test_observing_limits_nothing() -> None:
    assert "not limited, because the agent only observes" in sentence(
        [loop("web", 0.5)], mode="observe", in_force=SQUEEZED
    )


def test_yielding_is_not_a_limit() -> None:
    # sched-idle lies on the cgroup above the job.
    idle = {"path": "/batch", "knob": "cpu.idle", "applied": "1"}
    assert "has no quota, and yields to services (sched-idle)" in sentence([], knobs=(idle,))
    other = {"path": "/bat", "knob": "cpu.idle", "applied": "1"}
    assert "batch work is not limited" in sentence([], knobs=(other,))


def test_the_own_limit_of_a_pod_is_not_ours() -> None:
    own = {"cpus": 0.05, "limited": [{**LIMITED, "channel": None}]}
    assert "batch work is not limited" in sentence([], in_force=own)


def test_the_mode_is_a_badge() -> None:
    assert badge({"mode": "enforce"}).word == "enforcing"
    assert badge({"mode": "observe"}).word == "observing"
    assert badge({"mode": "\x1b"}).word == "mode unknown"


def test_the_health_of_the_agent_has_units() -> None:
    status = {
        "tick": {
            "duration_ns": 4e5,
            "duration_p99_ns": 2e6,
            "count": 9,
            "overruns": 1,
            "failed": 0,
        },
        "agent": {"used_cpus": 0.012, "budget_cpus": 0.2, "pss_bytes": 2**26, "budget_bytes": None},
    }
    facts = {name: value.replace("\N{NO-BREAK SPACE}", " ") for name, value in health(status)}
    assert facts == {
        **{"tick": "400 µs, p99 2 ms", "ticks": "9, 1 too long, 0 failed"},
        **{"CPU": "0.01 CPUs of 0.20 CPUs", "memory": "64 MiB"},
    }


@pytest.mark.parametrize("odd", [None, 7, "x", [], [7], {"a": 1}, [{"path": []}], [[]]])
@pytest.mark.parametrize("field", ["plan", "knobs", "workloads", "tick", "agent", "mode"])
def test_a_page_of_another_version_has_a_sentence(field: str, odd: object) -> None:
    status = {"mode": "enforce", "plan": {"loops": odd, "causes": odd}, field: odd}
    assert first_sentence(status, 2).endswith(".")
    assert len(health(status)) <= 5
