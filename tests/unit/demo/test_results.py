# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Results of the demonstration: aggregation, table, HTML report."""

import argparse
from dataclasses import replace
from html.parser import HTMLParser
import io
import json
from pathlib import Path
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from controller.cli.demo import add_arguments, main
from controller.demo.agent import parse_status
from controller.demo.phases import phase_plan
from controller.demo.programs import best_effort_jobs
from controller.demo.report import knobs_sentence, render
from controller.demo.results import Phase, Run, Sample, rounds, summarise, windows
from controller.demo.table import format_table
from controller.page.chart import Chart, Series
from tests.unit.demo.made_phases import load, phase

FOLDED = "Run-queue latency, demand and CPU time over time"


def test_violations_are_the_share_of_windows_over_the_sweet_point() -> None:
    dropped = [50.0] * 5
    one = phase("x", runq_ms=[*dropped, 1.0, 2.0, 2.1, None, 9.0])
    (row,) = summarise([one])
    assert row.windows == 4  # one window has no measurement
    assert row.violations == pytest.approx(2 / 4)  # 2.0 is equal to the sweet point, not above it
    assert row.runq_p99_ms == 2.0


def test_the_last_sample_of_a_window_counts() -> None:
    samples = tuple(
        Sample(time_s=time_s, runq_p99_ms=value, sweet_point_ms=2.0)
        for time_s, value in ((5.1, 9.0), (5.9, 1.0), (6.1, 1.0), (6.9, 9.0), (7.0, 5.0))
    )
    one = Phase(
        key="x",
        title="x",
        mode="observe",
        seconds=7.0,
        against=None,
        load=(),
        samples=samples,
        work=None,
    )
    assert [sample.time_s for sample in windows(one)] == [5.9, 6.9]


def test_dropped_seconds_do_not_count_in_latency() -> None:
    one = phase("x", runq_ms=[1.0] * 10)
    bad_start = Phase(
        **{name: getattr(one, name) for name in one.__slots__ if name != "load"},
        load=(load(0.0, *[500.0] * 50), load(4.9, 500.0), *one.load[5:]),
    )
    (row,) = summarise([bad_start])
    assert row.p99_ms == 1.0
    assert row.be_cpus == pytest.approx(1.5)


def test_rounds_are_pooled_and_work_is_relative_to_unmanaged() -> None:
    run = [
        phase("plain", runq_ms=[9.0] * 10, work=100, latency_ms=100.0),
        phase("managed", runq_ms=[1.0] * 10, work=80, against="plain"),
        phase("plain", runq_ms=[9.0] * 30, work=500, latency_ms=100.0),
        phase("managed", runq_ms=[3.0] * 10, work=100, against="plain"),
    ]
    plain, managed = summarise(run)
    assert plain.work_rate == pytest.approx(600 / 40)
    assert managed.work_ratio == pytest.approx((180 / 20) / (600 / 40))
    assert managed.violations == pytest.approx(0.5)
    assert managed.windows == 10


def test_a_round_has_each_phase_once() -> None:
    one = [phase(key, runq_ms=[1.0] * 6) for key in ("alone", "plain", "alone", "plain", "loop")]
    assert [[each.key for each in some] for some in rounds(one)] == [
        ["alone", "plain", "loop"],
        ["alone", "plain"],
    ]


def test_table_is_aligned() -> None:
    rows = summarise([phase("plain", runq_ms=[9.0] * 10, work=100)])
    head, line, first = format_table(rows).splitlines()
    assert len(head) == len(line) == len(first)
    assert "10.0 frames/s" in first


def test_status_of_the_agent() -> None:
    status = {
        "plan": {
            "loops": [
                {
                    "indicator": "runq_p99",
                    "value": 3_000_000.0,
                    "sweet_point": 2_000_000.0,
                    "deviation": 0.58,
                    "filtered_deviation": 0.4,
                },
                {
                    "indicator": "runq_delay_p99",
                    "value": 500_000.0,
                    "sweet_point": 1_000_000.0,
                    "deviation": -1.0,
                    "filtered_deviation": None,
                },
            ],
            "demands": [{"channel": "cpu", "applied": 0.3, "state": "squeeze"}],
        },
        "knobs": [
            {"path": "/demo/be-a", "knob": "cpu.quota", "applied": "5000 10000 0"},
            {"path": "/demo/be-b", "knob": "cpu.quota", "applied": "max 100000 0"},
            {"path": "/demo/be-a", "knob": "cpu.idle", "applied": "1"},
            {"path": "/other", "knob": "cpu.quota", "applied": "1000 10000 0"},
        ],
    }
    assert parse_status(status, "/demo/be-") == {
        "runq_p99_ms": 3.0,
        "sweet_point_ms": 2.0,
        "delay_p99_ms": 0.5,
        "delay_sweet_point_ms": 1.0,
        "deviation": 0.58,
        "filtered_deviation": 0.4,
        "demand": 0.3,
        "state": "squeeze",
        "be_idle": True,
        "be_quota_cpus": 0.5,
    }
    assert parse_status({}, "/demo/be-") == {}


class _Balance(HTMLParser):
    """Fails on unbalanced tags; collects the addresses of external resources."""

    VOID = frozenset(("meta", "br"))
    # Within the page.
    INSIDE = frozenset(("#main",))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {str(value) for name, value in attrs if name in ("src", "href")}
        self.loads += found - self.INSIDE
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_report_is_well_formed_and_loads_nothing() -> None:
    phases = (
        phase("plain <b>", runq_ms=[9.0] * 8, work=100),
        phase("managed", runq_ms=[1.0, None] * 4, work=90, against="plain <b>"),
    )
    run = Run(simulated=False, environment=(("kernel", "a & b"),), notes=("<note>",), phases=phases)
    page = render(run)
    balance = _Balance()
    balance.feed(page)
    assert balance.open == []
    assert balance.loads == []
    assert not re.search(r"url\(|@import|https?:", page)
    assert "<b>" not in page
    assert "a &amp; b" in page
    assert not re.search(r"\b(?:LS|BE)\b", page[page.index("<body>") :])
    drawings = re.findall(r"<svg[^>]* role=.*?</svg>", page, re.DOTALL)
    # No quota was set, so there is a sentence and no chart of it.
    assert len(drawings) == 4
    for drawing in drawings:
        assert ElementTree.fromstring(drawing).findall(".//path")
    assert "SIMULATED" not in page


def enforced(runq_ms: float = 1.0, **knobs: Any) -> Phase:
    one = phase("managed", runq_ms=[runq_ms] * 8, against="plain")
    return replace(one, samples=tuple(replace(sample, **knobs) for sample in one.samples))


def test_where_no_quota_was_needed_a_sentence_says_what_sufficed() -> None:
    assert "sched-idle sufficed" in (knobs_sentence([enforced(be_idle=True)]) or "")
    assert "No knob" in (knobs_sentence([enforced(be_idle=False)]) or "")
    assert knobs_sentence([enforced(be_idle=True), enforced(be_quota_cpus=0.5)]) is None


def test_what_was_set_did_not_suffice_where_the_service_was_not_well() -> None:
    found = knobs_sentence([enforced(be_idle=True), enforced(9.0, be_idle=True, state="not-be")])
    assert found == (
        "Batch work ran behind the service (sched-idle), and no quota was set. The service was "
        "above a sweet point in 3 of 6 windows. In most of these the agent did not find batch "
        "work to be the cause."
    )
    assert "sufficed" not in (knobs_sentence([enforced(9.0, be_idle=True)]) or "")
    nothing = replace(enforced(be_idle=True), samples=(Sample(time_s=6.0, be_idle=True),))
    assert "sufficed" not in (knobs_sentence([nothing]) or "")


def test_other_rounds_notes_and_environment_are_folded_away() -> None:
    pair = (
        phase("plain", runq_ms=[9.0] * 8, work=100),
        phase("managed", runq_ms=[1.0] * 8, work=90, against="plain"),
    )
    page = render(
        Run(
            simulated=False,
            environment=(("kernel", "6"),),
            notes=("note",),
            phases=(*pair * 3, *(phase(f"loop {n}", runq_ms=[1.0] * 8) for n in range(3))),
        )
    )
    assert re.findall("<summary>(.*?)</summary>", page) == [
        *(FOLDED, "Time lines of round 2", FOLDED, "Time lines of round 3", FOLDED),
        *("Time lines of the quota loop", FOLDED, "Notes", "Environment"),
    ]
    identities = re.findall(' id="(.*?)"', page)
    assert len(identities) == len(set(identities))


def test_chart_breaks_the_line_where_nothing_was_measured() -> None:
    series = Series(label="x", style="a", points=((0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 1.0)))
    drawing = ElementTree.fromstring(Chart(title="t", unit="u", seconds=3.0, series=[series]).svg())
    paths = [path.get("d") or "" for path in drawing.findall("path")]
    assert paths[0].count("M") == 2
    assert paths[0].count("L") == 1


def test_phases_compare_managed_with_unmanaged_of_the_same_job() -> None:
    plan = phase_plan(best_effort_jobs("both"), 25.0, 2, 40.0)
    assert [spec.title for spec in plan[:5]] == [
        "alone",
        "ffmpeg unmanaged",
        "ffmpeg managed",
        "stress-ng unmanaged",
        "stress-ng managed",
    ]
    assert [spec.key for spec in plan[5:10]] == [spec.key for spec in plan[:5]]
    assert [spec.loop_sweet_point for spec in plan[10:]] == ["2ms", "8ms", "2ms"]
    assert plan[4].against == plan[3].key
    assert {
        spec.mode for spec in plan if spec.against is None and spec.loop_sweet_point is None
    } == {"observe"}


def test_every_output_of_a_simulated_demo_says_simulated(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    report, raw = tmp_path / "deep" / "report.html", tmp_path / "raw.json"
    arguments = ["--simulate", "--seconds", "10", "--report", str(report), "--json", str(raw)]
    out = io.StringIO()
    assert main(parser.parse_args(arguments), out) == 0
    assert "SIMULATED" in out.getvalue()
    assert "stress-ng managed" in out.getvalue()
    assert "\r" not in out.getvalue()
    assert "SIMULATED" in report.read_text()
    run = json.loads(raw.read_text())
    assert run["simulated"] is True
    assert len(run["phases"]) == 15
    # The simulation has no lateness of a generator.
    assert all(not second["late_us"] for one in run["phases"] for second in one["load"])
