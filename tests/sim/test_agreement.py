# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Log, explain, advise, top, page and metrics say the same as the kernel: one record of it all.

A simulated node with two services, three jobs, and a foreign load outside all workloads. A write is
refused for a while, another program overwrites a quota, one job is paused.
"""

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass, replace
from datetime import datetime
import io
import json
from pathlib import Path
import random
import re

import pytest

from controller.cli.main import main
from controller.core.decision import IndicatorStatus, LoopReport, PartKind, Plan
from controller.core.in_force import InForce
from controller.core.knob_values import parse_quota
from controller.core.model import (
    CgroupId,
    Channel,
    Knob,
    KnobValue,
    Mode,
    Outside,
    Pause,
    Snapshot,
)
from controller.core.units import format_cpus
from controller.demo.simulated_node import Plant, SimulatedNode
from controller.page.summary import quota_cpus
from controller.page.view import Tracker
from controller.telemetry.metrics.exporter import Exporter
from controller.telemetry.pages import make_pages
from controller.telemetry.report import PublishedState
from tests.sim.explaining import START, Explain, incidents
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.history_loop import EPOCH_NS, RecordedLoop
from tests.support.reports import report

BACKUP = Outside(CgroupId("cpu", 77), "/system.slice/backup.service")
MOMENTS = 200


class ForeignLoad(SimulatedNode):
    """A node on which what is outside all workloads waits in one cgroup for its turn."""

    def snapshot(self, now_ns: int) -> Snapshot:
        found = super().snapshot(now_ns)
        blame = tuple(
            each._replace(culprit=BACKUP.cgroup) if each[1:3] == (None, True) else each
            for each in found.blame
        )
        return replace(found, blame=blame, outside=(BACKUP,))


@dataclass(frozen=True)
class Seen:
    """A tick: what was in force before and after it, its plan, and what the kernel has then.

    The quota of ``overwritten`` cgroups was not the agent's at its begin.
    """

    time_ns: int
    before: InForce
    record: InForce
    plan: Plan
    quotas: dict[str, KnobValue]
    overwritten: frozenset[CgroupId]


class Watched(RecordedLoop[ForeignLoad]):
    """A loop of which each tick is remembered and published."""

    def __init__(self, data_dir: Path, mode: Mode = Mode.ENFORCE) -> None:
        self.seen: list[Seen] = []
        self.published = PublishedState()
        node = ForeignLoad(3, Plant(cpus=4), wants=(0.0, 0.0, 0.0), services=2)
        super().__init__(node, make_settings(mode=mode, cpus=4), data_dir)

    def step(self) -> Plan:
        before, now_ns = self.planner.settle(self.outcomes), self.now_ns
        plan = super().step()
        assert self.latest is not None
        record = self.planner.settle(self.outcomes)
        quotas = {w.name: self.node.value(w, Knob.CPU_QUOTA) for w in self.node.best_effort}
        overwritten = frozenset(
            CgroupId(each.target.scope, each.target.id)
            for each in self.latest.knobs
            if each.knob is Knob.CPU_QUOTA and each.original is None
        )
        self.seen.append(Seen(now_ns, before, record, plan, quotas, overwritten))
        self.published.count(plan, self.outcomes)
        self.published.report = report(
            now_ns,
            mode=self.settings.mode,
            plan=plan,
            workloads=self.workloads,
            samples=self.latest.workloads,
            knobs=self.latest.knobs,
            in_force=record,
        )
        return plan


def story(loop: Watched) -> None:
    """Run a short story: jobs hurt, a foreign load does, a write fails, one job is paused."""
    node, calm = loop.node, loop.node.plant
    loop.run(10)
    node.wants = [1.6, 0.9, 0.4]
    loop.run(40)
    node.refused = {(node.best_effort[1].cgroup.id, Knob.CPU_QUOTA)}
    loop.run(10)
    node.refused = set()
    loop.run(10)
    node.write(node.best_effort[0], Knob.CPU_QUOTA, KnobValue("300000 100000 0"))
    loop.run(20)
    loop.pause = Pause(workloads=("batch-1",))
    loop.run(20)
    loop.pause = None
    loop.run(10)
    node.wants = [0.0, 0.0, 0.0]
    loop.run(60)
    node.plant = replace(calm, quiet_p99_ns=9e6, p99_ns=1e3)
    node.wants = [0.2, 0.1, 0.1]
    loop.run(40)
    node.plant, node.wants = calm, [0.0, 0.0, 0.0]
    loop.run(60)
    loop.stop()


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    watched = Watched(tmp_path_factory.mktemp("agreement"))
    story(watched)
    return watched


@pytest.fixture
def data_dir(loop: Watched) -> Path:
    return loop.data_dir


def cpus(quota: KnobValue) -> float | None:
    return parse_quota(quota).cpus


def test_the_record_is_what_the_kernel_has(loop: Watched) -> None:
    limited = 0
    for seen, after in zip(loop.seen, loop.seen[1:], strict=False):
        assert seen.record == after.before
        for each in seen.record.limited:
            limited += 1
            assert each.cpus == cpus(seen.quotas[each.workload.name])
            assert each.since_ns <= each.main.changed_ns <= seen.time_ns
            assert (each.main.channel, each.main.service) != (None, None)
        known = {each.workload.name for each in seen.record.limited}
        for name in seen.quotas.keys() - known:
            assert cpus(seen.quotas[name]) in (None, 3.0)  # of the other program
        total = sum(each.cpus or 0.0 for each in seen.record.limited)
        assert seen.record.cpus == (pytest.approx(total) if known else None)
    assert limited > 500


LINE = re.compile(r"quota (?:\S+ -> )?(\S+?)(?: as before)?, (\S+) gets (\S+)")


def test_lines_of_the_log_give_what_was_read_back(loop: Watched) -> None:
    told = 0
    for seen in loop.seen:
        for text in (each.text for each in seen.plan.verdicts):
            before = seen.before
            found = LINE.search(text)
            if found:
                # What another program overwrote is not in force in the tick that finds it.
                quotas = {
                    each.workload.name: each.cpus or 0.0
                    for each in before.limited
                    if each.workload.cgroup not in seen.overwritten
                }
                told += 1
                assert found[1] == format_cpus(sum(quotas.values())), text
                assert found[3] == format_cpus(quotas[found[2]]), text
            if "best-effort is not limited" in text:
                assert not before.limited, text
    assert told > 5


def test_pages_metrics_and_top_say_the_same(tmp_path: Path) -> None:
    moments = random.Random(7).sample(range(1400), MOMENTS)
    checked = 0

    class Asked(Watched):
        def step(self) -> Plan:
            nonlocal checked
            plan = super().step()
            if self.tick in moments:
                check_pages(self.published, self.seen[-1].record)
                checked += bool(self.seen[-1].record.limited)
            return plan

    story(Asked(tmp_path))
    assert checked > MOMENTS / 4


def check_pages(published: PublishedState, record: InForce) -> None:
    status = json.loads(make_pages(published, None, healthy_ns=1, details=True)["/statusz"]()[2])
    view = Tracker().update(status)
    limited = {each.workload.name: each for each in record.limited}
    for row in view.workloads:
        wanted = limited[row.name].cpus if row.name in limited else None
        assert row.allowance == ("no quota" if wanted is None else format_cpus(wanted))
    assert ("may use" in view.head) is (record.cpus is not None)
    assert record.cpus is None or f"may use {format_cpus(record.cpus)}" in view.head
    assert quota_cpus(status) == record.cpus
    (channel,) = (each for each in view.channels if each.channel == "cpu")
    assert bool(channel.knobs) is bool(record.of_channel(Channel.CPU))
    for told in status["in_force"]["limited"]:
        mine = limited[told["name"]]
        assert (told["cpus"], told["since_ns"]) == (mine.cpus, mine.since_ns)
        assert (told["service"], told["reason"]) == (mine.main.service, mine.main.reason)
    metrics = Exporter(published).render().decode()
    assert f"sweetpoint_limited_workloads {float(len(limited))}" in metrics
    for name, each in limited.items():
        series = f'channel="cpu",knob="cpu.quota",service="{each.main.service}",workload="{name}"'
        assert f"sweetpoint_limited_seconds{{{series}}}" in metrics
    if record.cpus is not None:
        found = re.search(r"^sweetpoint_best_effort_granted_cpus (\S+)$", metrics, re.MULTILINE)
        assert found and float(found[1]) == pytest.approx(record.cpus)


def test_explain_of_a_job_is_what_was_in_force(loop: Watched, explain: Explain) -> None:
    for job in loop.node.best_effort:
        squeezes = incidents(explain, job.name, "squeeze")
        spans = [(ns(each["began"]), ns(each["ended"])) for each in squeezes]
        assert spans
        for seen in random.Random(job.name).sample(loop.seen, MOMENTS):
            now_ns = EPOCH_NS + seen.time_ns
            near = any(abs(now_ns - edge) < 1.5e9 for span in spans for edge in span)
            if not near:  # a moment of the history is a second
                covered = any(began <= now_ns <= ended for began, ended in spans)
                assert covered is (seen.record.of(job.cgroup) is not None), now_ns
        for squeeze, (began, ended) in zip(squeezes, spans, strict=True):
            inside = [
                limited
                for seen in loop.seen
                if began - 1.1e9 <= EPOCH_NS + seen.time_ns <= ended
                and (limited := seen.record.of(job.cgroup)) is not None
            ]
            (knob,) = squeeze["knobs"]
            assert cpus(knob["strictest"]) == min(each.cpus or 9.0 for each in inside)
            services = {each.main.service for each in inside}
            assert {squeeze["service"], *squeeze["also"]} == services


def test_at_worst_is_the_largest_raw_value(loop: Watched, explain: Explain) -> None:
    found = json.loads(run_advise(loop, "--json"))["services"]
    assert len(found) == 2
    for each in found:
        name = each["service"]
        values = [loop_.value or 0.0 for seen in loop.seen for loop_ in fresh(seen.plan, name)]
        worst = [times["worst"]["value"] for times in each["modes"].values()]
        sufferings = incidents(explain, name, "suffering")
        assert max(worst) == max(each["loop"]["value"] for each in sufferings) == max(values)
        # Far beyond the end of the scale of the loops, 4 times the sweet point.
        assert max(values) > 4 * 2e6


def test_services_and_jobs_have_one_verdict(loop: Watched, explain: Explain) -> None:
    effects = [
        each["effect"]
        for service in loop.node.sensitive
        for each in incidents(explain, service.name, "suffering")
    ]
    for job in loop.node.best_effort:
        for squeeze in incidents(explain, job.name, "squeeze"):
            assert squeeze["effect"] in effects


def test_the_suffered_time_is_counted_once(loop: Watched, explain: Explain) -> None:
    for each in json.loads(run_advise(loop, "--json"))["services"]:
        name = each["service"]
        by_tick = sum(ns_ for (of, *_), ns_ in loop.published.suffered_ns.items() if of == name)
        advised = sum(times["suffered_ns"] for times in each["modes"].values())
        found = incidents(explain, name, "suffering")
        explained = sum(sum(one["states_ns"].values()) for one in found)
        assert advised == pytest.approx(by_tick, abs=1e9)
        assert explained == pytest.approx(by_tick, abs=2e9)
        limited = [one["limited_ns"].get("squeeze", 0) for one in found]
        assert max(limited) > 10 * 10**9


def test_parts_are_those_of_the_evidence(loop: Watched) -> None:
    causes = [each for seen in loop.seen for each in seen.plan.causes if each.parts]
    assert len(causes) > 500
    for cause in causes:
        batch = sum(each.share for each in cause.parts if each.kind is PartKind.BEST_EFFORT)
        # Parts below a hundredth are not named.
        assert batch == pytest.approx(cause.be_share, abs=0.03)
        assert sum(each.share for each in cause.parts) == pytest.approx(1.0, abs=0.05)


def test_explain_and_the_record_agree_since_when(loop: Watched, explain: Explain) -> None:
    """To the tick, although a moment of the history stands for a second or more."""
    since_ns = {
        EPOCH_NS + each.since_ns
        for seen in loop.seen
        for each in seen.record.limited
        if each.workload.name == "batch-0"
    }
    found = incidents(explain, "batch-0", "squeeze")
    assert found
    for squeeze in found:
        began_ns = datetime.fromisoformat(squeeze["began"]).timestamp() * 1e9
        assert any(abs(began_ns - each) < 2e6 for each in since_ns), squeeze["began"]


def test_the_largest_culprit_has_a_name(loop: Watched, explain: Explain) -> None:
    for service in loop.node.sensitive:
        found = incidents(explain, service.name, "suffering")
        largest = [(each["parts"][0]["kind"], each["parts"][0]["name"]) for each in found]
        assert largest[0] == (PartKind.BEST_EFFORT, "batch-0")
        assert (PartKind.OUTSIDE, BACKUP.path) in largest[1:]
    advice = run_advise(loop).splitlines()
    assert not any(line.startswith("    parts ") for line in advice)
    causes = [line for line in advice if line.startswith("    cause ")]
    assert any(f"outside {BACKUP.path}" in line for line in causes)
    assert all(line.count("batch-0 ") == 1 for line in causes)
    lines = [each.text for seen in loop.seen for each in seen.plan.verdicts]
    assert any(f"most of it outside {BACKUP.path}" in line for line in lines)


def fresh(plan: Plan, service: str) -> Iterator[LoopReport]:
    """Yield the loops of *service* that have data."""
    for each in plan.loops:
        if each.service == service and each.status is IndicatorStatus.FRESH:
            yield each


def ns(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1e9


def run_advise(loop: Watched, *options: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["advise", "--data-dir", str(loop.data_dir), "--since", START, *options]) == 0
    return out.getvalue()
