# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Log, explain, advise, top, page and metrics say the same as the kernel: one record of it all.

A simulated node with two services, three jobs, and a foreign load outside all workloads. A write is
refused for a while, another program overwrites a quota, one job is paused.
"""

from dataclasses import replace
import json
from pathlib import Path
import random

import pytest

from controller.cli.held import of_page
from controller.cli.status import plain as plain_status
from controller.cli.top import plain
from controller.core.decision import PartKind, Plan
from controller.core.knob_values import cpus_of
from controller.core.model import (
    CgroupId,
    Knob,
    KnobReading,
    KnobValue,
    Mode,
    Outside,
    Pause,
    Snapshot,
)
from controller.demo.simulated_node import Plant, SimulatedNode
from controller.page.view import Tracker
from controller.telemetry.pages import make_pages
from controller.telemetry.report import PublishedState
from tests.sim.explaining import START
from tests.support.agreement.seen import Seen, check_lines, check_parts, check_quotas, check_taken
from tests.support.agreement.surfaces import Surfaces, check_surfaces
from tests.support.agreement.told import (
    Told,
    check_squeezes,
    check_suffered,
    check_verdicts,
    check_worst,
    largest_parts,
)
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.history_loop import RecordedLoop
from tests.support.reports import report

BACKUP = Outside(CgroupId("cpu", 77), "/system.slice/backup.service")
MOMENTS = 200


class ForeignLoad(SimulatedNode):
    """A node on which what is outside all workloads is one cgroup; ``outside`` are those listed."""

    outside: tuple[Outside, ...] = (BACKUP,)

    def snapshot(self, now_ns: int) -> Snapshot:
        found = super().snapshot(now_ns)
        blame = tuple(
            each._replace(culprit=BACKUP.cgroup) if each[1:3] == (None, True) else each
            for each in found.blame
        )
        return replace(found, blame=blame, outside=self.outside)


class Watched(RecordedLoop[ForeignLoad]):
    """A loop of which each tick is remembered and published; ``quotas`` are those of the kernel."""

    def __init__(self, data_dir: Path, mode: Mode = Mode.ENFORCE) -> None:
        self.seen: list[Seen] = []
        self.quotas: list[dict[str, float | None]] = []
        self.published = PublishedState()
        node = ForeignLoad(3, Plant(cpus=4), wants=(0.0, 0.0, 0.0), services=2)
        super().__init__(node, make_settings(mode=mode, cpus=4), data_dir)

    def step(self) -> Plan:
        before, now_ns = self.planner.settle(self.outcomes), self.now_ns
        plan = super().step()
        assert self.latest is not None
        record = self.planner.settle(self.outcomes)
        self.seen.append(Seen(before, record, self.latest, plan, self.workloads))
        jobs = self.node.best_effort
        self.quotas.append({w.name: cpus_of(self.node.value(w, Knob.CPU_QUOTA)) for w in jobs})
        self.published.count(plan, self.outcomes)
        self.published.report = report(
            now_ns,
            mode=self.settings.mode,
            plan=plan,
            workloads=self.workloads,
            samples=self.latest.workloads,
            knobs=self._read_back(self.latest),
            in_force=record,
        )
        return plan

    def _read_back(self, snapshot: Snapshot) -> tuple[KnobReading, ...]:
        """Return the knobs of *snapshot*, with what was written after it."""
        found = {(each.target, each.knob): each for each in snapshot.knobs}
        for action, applied, original in (
            (each.action, each.applied, each.original) for each in self.outcomes
        ):
            if applied is not None:
                place = action.target, action.knob
                found[place] = KnobReading(*place, applied, original)
        return tuple(found.values())


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


@pytest.fixture(scope="module")
def told(loop: Watched) -> Told:
    return Told(loop.data_dir, loop.seen, START)


def test_the_record_is_what_the_kernel_has(loop: Watched) -> None:
    for seen, after, quotas in zip(loop.seen, loop.seen[1:], loop.quotas, strict=False):
        assert seen.record == after.before
        check_quotas(seen.record, quotas, (None, 3.0))  # of the other program
    assert sum(len(seen.record.limited) for seen in loop.seen) > 500


def test_lines_of_the_log_give_what_was_read_back(loop: Watched) -> None:
    assert check_lines(loop.seen) > 5


def test_pages_metrics_and_top_say_the_same(tmp_path: Path) -> None:
    moments = random.Random(7).sample(range(1400), MOMENTS)
    checked = 0

    class Asked(Watched):
        def step(self) -> Plan:
            nonlocal checked
            plan = super().step()
            if self.tick in moments:
                check_surfaces(surfaces(self.published), self.seen[-1].record)
                checked += bool(self.seen[-1].record.limited)
            return plan

    story(Asked(tmp_path))
    assert checked > MOMENTS / 4


def surfaces(published: PublishedState) -> Surfaces:
    pages = make_pages(published, None, healthy_ns=1, details=True)
    status = json.loads(pages["/statusz"]()[2])
    return Surfaces(
        page_status=status,
        metrics=pages["/metrics"]()[2].decode(),
        page=pages["/"]()[2].decode(),
        top="\n".join(plain(Tracker().update(status))),
        status=plain_status(of_page(status, status["wall_ns"])),
        until_ns=status["time_ns"],
    )


def test_nothing_more_is_taken_for_what_others_cause(loop: Watched) -> None:
    check_taken(loop.seen)


def test_explain_of_a_job_is_what_was_in_force(loop: Watched, told: Told) -> None:
    for job in loop.node.best_effort:
        assert told.incidents(job.name, "squeeze")
        assert check_squeezes(told, job) > MOMENTS / 2


def test_at_worst_is_the_largest_raw_value(loop: Watched, told: Told) -> None:
    for service in loop.node.sensitive:
        # Far beyond the end of the scale of the loops, 4 times the sweet point.
        assert check_worst(told, service.name) > 4 * 2e6


def test_services_and_jobs_have_one_verdict(loop: Watched, told: Told) -> None:
    services, jobs = loop.node.sensitive, loop.node.best_effort
    check_verdicts(told, (each.name for each in services), (each.name for each in jobs))


def test_the_suffered_time_is_counted_once(loop: Watched, told: Told) -> None:
    check_suffered(told)
    for service in loop.node.sensitive:
        found = told.incidents(service.name, "suffering")
        assert max(one["limited_ns"].get("squeeze", 0) for one in found) > 10 * 10**9


def test_parts_are_those_of_the_evidence(loop: Watched) -> None:
    assert check_parts(loop.seen) > 500


def test_the_largest_culprit_has_a_name(loop: Watched, told: Told) -> None:
    for service in loop.node.sensitive:
        largest = largest_parts(told, service.name)
        assert largest[0] == (PartKind.BEST_EFFORT, "batch-0")
        assert (PartKind.OUTSIDE, BACKUP.path) in largest[1:]
    advice = told.run("advise").splitlines()
    assert not any(line.startswith("    parts ") for line in advice)
    causes = [line for line in advice if line.startswith("    cause ")]
    assert any(f"outside {BACKUP.path}" in line for line in causes)
    assert all(line.count("batch-0 ") == 1 for line in causes)
    lines = [each.text for seen in loop.seen for each in seen.plan.verdicts]
    assert any(f"most of it outside {BACKUP.path}" in line for line in lines)


def test_evidence_at_most_is_told_apart_from_parts_on_average(loop: Watched, told: Told) -> None:
    for service in loop.node.sensitive:
        for incident in told.incidents(service.name, "suffering"):
            parts = [each for each in incident["parts"] if each["kind"] == PartKind.BEST_EFFORT]
            # A later part may be larger by 0.05 without being told.
            assert sum(each["share"] for each in parts) <= incident["be_share"] + 0.05
        lines = [line.split(maxsplit=1) for line in told.run("explain", service.name).splitlines()]
        words = {line[0]: line[1] for line in lines if len(line) > 1}
        assert words["evidence"].startswith("best-effort caused up to ")
        assert words["parts"].startswith("on average ")


def test_a_cgroup_that_left_keeps_its_name(tmp_path: Path) -> None:
    loop = Watched(tmp_path)
    loop.node.plant = replace(loop.node.plant, quiet_p99_ns=9e6, p99_ns=1e3)
    loop.run(20)
    loop.node.outside = ()
    loop.run(2)
    causes = [each for seen in loop.seen for each in seen.plan.causes]
    names = [{e.name for e in c.parts if e.kind is PartKind.OUTSIDE} for c in causes]
    assert names[-1] == {BACKUP.path}
    assert set.union(*names) == {BACKUP.path}
