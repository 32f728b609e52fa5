# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The view of ``sweetpoint top``: pages of a real server become rows, hostile ones text."""

from dataclasses import replace
import io
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from rich.console import Console

from controller.cli.top import plain
from controller.cli.top_screen import draw
from controller.core.decision import LearnedReport
from controller.core.model import IndicatorName
from controller.page.quantities import position
from controller.page.view import (
    ChannelRow,
    ServiceRow,
    Tracker,
    View,
    WorkloadRow,
    bar,
    spark,
)
from tests.unit.cli.published import page, published


def test_a_page_becomes_rows() -> None:
    tracker = Tracker()
    tracker.update(page(published(10**9, 10**9)))
    view = tracker.update(page(published(3 * 10**9, 2 * 10**9)))
    assert "enforce" in view.head and "best-effort may use 0.50cpu" in view.head
    assert view.notes[:2] == (r"paused: service db\x1b", "probe net is off: no cgroup2 tree")
    (service,) = view.services
    assert service[:7] == ("web", "runq_p99", "cpu", "fresh", "3ms", "2ms", "")
    assert service.ratio == 1.5
    assert service.trend == (1.5, 1.5)
    (job,) = view.workloads
    # sched-idle lies on the cgroup above the job.
    assert job == ("job", "0.50cpu, idle", 0.5, 0.8, "web")
    (channel,) = view.channels
    assert (channel.state, channel.demand, channel.service) == ("squeeze", 0.2, "web")
    assert view.decisions == (r"     3s ago  web: squeezed\x1b[31m",)


def test_filter_and_order() -> None:
    first = page(published())
    jobs = [
        {"name": f"job{i}", "qos": "best-effort", "path": f"/j{i}", "cgroup": ["cpu", i]}
        for i in range(3)
    ]
    first["workloads"] = [{**job, "oncpu_ns": 0} for job in jobs]
    second = {**first, "time_ns": first["time_ns"] + 10**9}
    second["workloads"] = [{**job, "oncpu_ns": i * 10**8} for i, job in enumerate(jobs)]
    tracker = Tracker(sort="use")
    tracker.update(first)
    assert [each.name for each in tracker.update(second).workloads] == ["job2", "job1", "job0"]
    tracker.sort = "name"
    assert [each.name for each in tracker.again(second).workloads] == ["job0", "job1", "job2"]
    tracker.pattern = "*2"
    view = tracker.again(second)
    assert [each.name for each in view.workloads] == ["job2"]
    assert view.services == ()


def test_where_a_sweet_point_is_from() -> None:
    learned = LearnedReport(
        service="web",
        indicator=IndicatorName.RUNQ_P99,
        sweet_point=2e6,
        is_sure=False,
        certainty=0.4,
        windows=24,
        disturbance="",
        is_time=True,
    )
    state = published()
    first = state.report
    assert first is not None
    state.report = replace(first, plan=replace(first.plan, learned=(learned,)))
    (row,) = Tracker().update(page(state)).services
    assert (row.sweet_point, row.origin) == ("2ms", "learning, 40%")
    sure = replace(learned, is_sure=True)
    state.report = replace(first, plan=replace(first.plan, learned=(sure,)))
    view = Tracker().update(page(state))
    assert any("3ms of 2ms (learned) (1.50 times)" in line for line in plain(view))


def test_one_service_is_shown_with_what_harms_it() -> None:
    first = page(published())
    first["workloads"] += [{**first["workloads"][-1], "name": "idle", "cgroup": ["cpu", 9]}]
    first["plan"]["loops"] += [{**first["plan"]["loops"][0], "service": "web2"}]
    view = Tracker(service="web").update(first)
    assert [each.service for each in view.services] == ["web"]
    assert [each.name for each in view.workloads] == ["job"]
    assert Tracker(service="web2").update(first).workloads == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    [
        "plan",
        "workloads",
        "knobs",
        "decisions",
        "pauses",
        "policies",
        "probes",
        "tick",
        "agent",
        "time_ns",
    ]
)
INNER = st.sampled_from(
    [
        *("loops", "demands", "rungs", "causes", "service", "indicator", "value", "sweet_point"),
        *("channel", "culprits", "share", "cgroup", "path", "name", "qos", "oncpu_ns", "applied"),
        *("in_force", "policy", "because", "undecided", "node_labels"),
    ]
)
RECORDS = st.lists(st.dictionaries(INNER, JSON, max_size=6), max_size=3)


PAGES = st.dictionaries(
    FIELDS, JSON | RECORDS | st.dictionaries(INNER, RECORDS, max_size=3), max_size=5
)


@given(st.lists(PAGES, max_size=2), st.integers(1, 100), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_any_page_is_shown_without_control_characters(
    pages: list[dict[str, Any]], width: int, height: int
) -> None:
    tracker = Tracker()
    for each in pages:
        view = tracker.update(each)
        assert all(line.isprintable() for line in plain(view, detail=True))
        file = io.StringIO()
        console = Console(file=file, width=width, height=height, force_terminal=False)
        console.print(draw(view, detail=False, height=height, hint=""))
        assert all(line.isprintable() for line in file.getvalue().split("\n"))


def test_bar_and_trend() -> None:
    assert bar(None, 4) == "    "
    assert [bar(ratio, 8) for ratio in (0.0, 0.5, 1.0, 1.01, 2.0, 12.8, 137.0)] == [
        *("........", "##......", "####....", "####!...", "####!...", "####!!..", "####!!!!")
    ]
    assert spark([0.0, None, 1.0, 9.0, 100.0], 6) == " ▁ ▅▆█"


@given(st.floats(0, 1e30), st.floats(0, 1e30))
def test_more_is_never_drawn_shorter(one: float, other: float) -> None:
    least, most = sorted((one, other))
    assert 0 <= position(least) <= position(most) <= 1
    assert bar(least, 16).rstrip(".") <= bar(most, 16).rstrip(".")


def test_bars_tell_apart_what_hurts_from_what_hurts_more() -> None:
    """Also far above the sweet point, up to a hundred times."""
    bars = [bar(ratio, 16) for ratio in (1.0, 2.0, 6.0, 13.0, 40.0, 100.0)]
    assert len({*bars}) == len(bars)


ROW = ServiceRow(
    service="shop/checkout-frontend",
    indicator="runq_delay_p99",
    channel="cpu",
    status="fresh",
    value="137.4ms",
    sweet_point="2.125ms",
    origin="learning, 40%",
    ratio=64.7,
    trend=(0.5,) * 59 + (64.7,),
)
WIDE = View(
    head="enforce",
    notes=(),
    services=(ROW, ROW._replace(service="web", origin="", ratio=None)),
    workloads=(
        WorkloadRow(
            "batch:encode-a-long-name.service",
            "0.05cpu, idle",
            1.25,
            0.83,
            "shop/checkout, web",
        ),
    ),
    channels=(ChannelRow("cpu", "squeeze", 0.5, "shop/checkout", "quota 0.05cpu, idle on"),),
    decisions=("   3s ago  web: squeezed",),
)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("detail", [False, True])
def test_numbers_are_whole_whatever_the_width_of_the_terminal(width: int, detail: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, height=40, force_terminal=False)
    console.print(draw(WIDE, detail=detail, height=40, hint=""))
    shown = file.getvalue()
    assert all(len(line) <= width for line in shown.splitlines())
    for number in ("137.4ms", "2.125ms", " 64.7 ", "0.05cpu, idle", "1.25cpu", "83%", "50%"):
        assert number in shown
    assert "runq_delay_p99" in shown
    assert "shop/chec" in shown
    if width >= 120:
        assert f"{spark(ROW.trend, 8)} " in shown  # the newest
        assert "cpu     fresh" in shown
    if width == 200:
        assert spark(ROW.trend, 60) in shown
        assert "learning, 40%" in shown


def paused(*entries: tuple[str, str]) -> dict[str, Any]:
    first = page(published())
    other = {**first["workloads"][-1], "name": "other", "cgroup": ["cpu", 9], "path": "/other"}
    first["workloads"].append(other)
    first["pauses"] = [{"scope": scope, "name": name} for scope, name in entries]
    return first


@pytest.mark.parametrize(
    ("entries", "head", "rows"),
    [
        ((), "best-effort may use 0.50cpu", {"job": "0.50cpu, idle", "other": "no quota"}),
        ((("everything", ""),), "best-effort is paused", {"job": "paused", "other": "paused"}),
        (
            (("workload", "job"), ("workload", "other")),
            "best-effort is paused",
            {"job": "paused", "other": "paused"},
        ),
        (
            (("workload", "job"), ("service", "web")),
            "best-effort may use 0.50cpu (1 of 2 workloads paused)",
            {"job": "paused", "other": "no quota"},
        ),
    ],
)
def test_what_is_paused_is_said_to_be(
    entries: tuple[tuple[str, str], ...], head: str, rows: dict[str, str]
) -> None:
    view = Tracker().update(paused(*entries))
    assert view.head.split(" | ")[1] == head
    assert {each.name: each.allowance for each in view.workloads} == rows
    assert any(f"workload job {rows['job']}, uses" in line for line in plain(view))


def test_policies_in_force_are_one_note() -> None:
    first = page(published())
    first["policies"] = {
        "in_force": [
            {"policy": "night", "because": "until 2026-11-28 06:00 CET"},
            {"policy": "canary\x1b", "because": "node labels: pool=canary"},
        ],
        "undecided": [],
        "node_labels": "kept",
    }
    notes = Tracker().update(first).notes
    assert (
        "policies in force (labels as last read): night (until 2026-11-28 06:00 CET), "
        r"canary\x1b (node labels: pool=canary)"
    ) in notes
    first["policies"] = {"in_force": [], "undecided": ["canary"], "node_labels": "unknown"}
    notes = Tracker().update(first).notes
    assert "policies wait, the labels of the node are not known: canary" in notes
    first["policies"] = None
    assert not any("polic" in note for note in Tracker().update(first).notes)


def test_a_pause_covers_the_containers_of_a_pod_and_the_entries_of_a_pattern() -> None:
    first = paused(("workload", "shop/job"), ("workload", "batch"))
    first["workloads"][-2] |= {"name": "shop/job/main", "service": "shop/job", "container_of": []}
    first["workloads"][-1] |= {"name": "batch:encode.service"}
    assert {each.allowance for each in Tracker().update(first).workloads} == {"paused"}
