# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What an agent shows now: /statusz, /metrics, the page and ``top`` agree with the record."""

from datetime import datetime
from html import escape, unescape
import re
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families
import pytest

from controller.core.in_force import InForce
from controller.core.model import Channel
from controller.core.units import format_cpus
from controller.page.quantities import spaced
from controller.page.summary import quota_cpus

__all__ = ("Surfaces", "check_surfaces")


class Surfaces(NamedTuple):
    """The pages of an agent between two ticks with the same record, and what commands print.

    ``page_status`` is the first page, and ``until_ns`` the time of the last one. ``status`` is what
    ``sweetpoint status --json`` prints.
    """

    page_status: dict[str, Any]
    metrics: str
    page: str
    top: str
    status: dict[str, Any]
    until_ns: int

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the samples of the metric *name* by the values of their labels in order."""
        families = text_string_to_metric_families(self.metrics)
        samples = [sample for family in families for sample in family.samples]
        return {
            tuple(s.labels[label] for label in sorted(s.labels)): s.value
            for s in samples
            if s.name == name
        }


def check_surfaces(shown: Surfaces, record: InForce, idle: frozenset[str] = frozenset()) -> None:
    """Check that all of *shown* gives *record*; *idle* are the workloads below sched-idle."""
    _check_page_status(shown.page_status, record)
    _check_status(shown, record)
    _check_metrics(shown, record)
    jobs = [e for e in shown.page_status["workloads"] if e["qos"] == "best-effort"]
    limited = {each.workload.name: each for each in record.limited}
    for name in (each["name"] for each in jobs):
        wanted = limited[name].cpus if name in limited else None
        allowance = "no quota" if wanted is None else format_cpus(wanted)
        allowance += ", idle" * (name in idle)
        assert f"\nworkload {name} {allowance}, uses " in shown.top, shown.top
        cells = rf'<th scope="row" class="text">{re.escape(escape(name))}</th><td[^>]*>([^<]*)</td>'
        assert spaced(allowance) in map(unescape, re.findall(cells, shown.page)), name
    _check_heads(shown, record)
    held = record.of_channel(Channel.CPU)
    (line,) = (each for each in shown.top.splitlines() if each.startswith("channel cpu "))
    assert ("quota" in line) is bool(held), line
    assert not held or f"quota {format_cpus(record.cpus or 0.0)} on " in line, line


def _check_heads(shown: Surfaces, record: InForce) -> None:
    head = shown.top.partition("\n")[0]
    sentence = re.search(r"atch work is limited to (\S+) of", shown.page)
    if record.cpus is None:
        assert "may use" not in head and sentence is None, head
    else:
        assert f"may use {format_cpus(record.cpus)} " in head, head
        assert sentence and sentence[1] == f"{record.cpus:.2f}"


def _check_page_status(status: dict[str, Any], record: InForce) -> None:
    limited = {each.workload.name: each for each in record.limited}
    assert {each["name"] for each in status["in_force"]["limited"]} == limited.keys()
    assert quota_cpus(status) == record.cpus == status["in_force"]["cpus"]
    for told in status["in_force"]["limited"]:
        mine = limited[told["name"]]
        assert (told["cpus"], told["since_ns"]) == (mine.cpus, mine.since_ns)
        assert (told["service"], told["reason"]) == (mine.main.service, mine.main.reason)
    applied = {(each["path"], each["knob"]): each["applied"] for each in status["knobs"]}
    for knob in record.knobs:
        assert applied[knob.target.path, knob.knob] == knob.value


def _check_status(shown: Surfaces, record: InForce) -> None:
    limited = {each.workload.name: each for each in record.limited}
    assert {each["name"] for each in shown.status["limited"]} == limited.keys()
    wall_ns = shown.page_status["wall_ns"] - shown.page_status["time_ns"]
    for told in shown.status["limited"]:
        mine = limited[told["name"]]
        assert (told["cpus"], told["service"], told["channel"], told["reason"]) == (
            *(mine.cpus, mine.main.service, mine.main.channel, mine.main.reason),
        )
        # Two clocks are read once for each page, and milliseconds are printed.
        since_ns = datetime.fromisoformat(told["since"]).timestamp() * 1e9
        assert since_ns == pytest.approx(wall_ns + mine.since_ns, rel=0, abs=2e6)


def _check_metrics(shown: Surfaces, record: InForce) -> None:
    assert shown.series("sweetpoint_limited_workloads") == {(): len(record.limited)}
    seconds = shown.series("sweetpoint_limited_seconds")
    wanted = {
        (knob.channel or "", knob.knob, knob.service or "", each.workload.name): knob.since_ns
        for each in record.limited
        for knob in each.knobs
    }
    assert seconds.keys() == wanted.keys()
    for labels, since_ns in wanted.items():
        least_s, most_s = (
            (at - since_ns) / 1e9 for at in (shown.page_status["time_ns"], shown.until_ns)
        )
        assert least_s <= seconds[labels] <= most_s
    granted = shown.series("sweetpoint_best_effort_granted_cpus")
    assert granted == ({} if record.cpus is None else {(): pytest.approx(record.cpus)})
    quotas = shown.series("sweetpoint_quota_applied_cpus")
    for each in record.limited:
        assert quotas["cpu.quota", each.workload.name] == pytest.approx(each.cpus)
