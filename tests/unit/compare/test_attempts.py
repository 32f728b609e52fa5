# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The run of a comparison: services, failures, repetitions, and pages of kept blocks."""

from collections.abc import Iterator
import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from controller.demo.session import Interrupted
from tests.compare.__main__ import MIXES, Attempts, main
from tests.compare.plan import Task, plan, run
from tests.compare.policies import DEFAULT_POLICIES
from tests.compare.record import ALONE, Block, Record
from tests.compare.services import Service
from tests.unit.compare.made import BLOCK


class Stage:
    """Blocks of a run without programs: which services ran, and what the blocks return."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.failing: dict[Task, BaseException] = {}
        self.wrong: set[Task] = set()

    @contextlib.contextmanager
    def serving(self, service: Service) -> Iterator[int]:
        self.events.append(f"start {service.name}")
        yield 80
        self.events.append(f"stop {service.name}")

    def run(self, task: Task, port: int) -> Block:
        assert port == 80
        if task in self.failing:
            raise self.failing.pop(task)
        unaccounted = 0.2 if task in self.wrong else 0.0
        self.wrong.discard(task)
        mix, policy, number = task.key
        return replace(BLOCK, mix=mix, policy=policy, round=number, unaccounted_ratio=unaccounted)


def run_on(stage: Stage, record: Record, tasks: list[Task], spare: int = 9) -> None:
    with Attempts(stage.run, stage.serving, record) as attempts:
        run(tasks, attempts, spare)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record.start(tmp_path / "blocks.jsonl", {"kernel": "6.18"})


TASKS = plan(MIXES[:2], (ALONE, *DEFAULT_POLICIES), 2)


def test_a_service_runs_for_all_blocks_of_its_mix(record: Record) -> None:
    stage = Stage()
    run_on(stage, record, TASKS)
    assert stage.events == [f"{do} {each}" for each in ("nginx", "memcached") for do in (
        "start", "stop"
    )]  # fmt: skip
    assert record.done == {task.key for task in TASKS}


def test_pairs_are_complete_after_failures(
    record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage()
    stage.failing[TASKS[3]] = OSError("no such cgroup")
    stage.wrong.add(TASKS[5])
    run_on(stage, record, TASKS)
    assert record.done == {task.key for task in TASKS}
    assert [each.reason for each in record.failures] == ["OSError: no such cgroup"]
    assert len(record.blocks) == len(TASKS) + 1
    # The failure may be the service's, so it is started again.
    assert stage.events[:3] == ["start nginx", "stop nginx", "start nginx"]
    printed = capsys.readouterr().out
    assert f"{TASKS[3].policy}, round 1: unusable, OSError: no such cgroup" in printed
    assert f"{TASKS[5].policy}, round 1: unusable, p99 1.00 ms" in printed
    assert "compare: 0 min left" in printed


def test_a_run_that_was_interrupted_is_continued_where_it_was(record: Record) -> None:
    stage = Stage()
    stage.failing[TASKS[9]] = Interrupted(2)
    with pytest.raises(Interrupted):
        run_on(stage, record, TASKS)
    assert stage.events[-1] == "stop nginx"
    again = Record.load(record.path)
    assert again.failures == []
    assert again.done == {task.key for task in TASKS[:9]}
    run_on(stage, again, [task for task in TASKS if task.key not in again.done])
    assert len(Record.load(record.path).usable) == len(TASKS)


def test_kept_blocks_are_rendered(record: Record, tmp_path: Path) -> None:
    run_on(Stage(), record, TASKS)
    output = tmp_path / "BENCHMARKS.md"
    options = ["--render", "--blocks", str(record.path), "--output", str(output)]
    assert main(options) == 0
    assert "- kernel: 6.18" in output.read_text()
    for name in ("benchmarks.svg", "benchmarks-short.svg"):
        assert f"]({name})" in output.read_text()
        assert (tmp_path / name).read_text().startswith("<svg ")


def test_without_blocks_nothing_is_rendered(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "BENCHMARKS.md"
    for path in (record.path, tmp_path / "missing"):
        assert main(["--render", "--blocks", str(path), "--output", str(output)]) == 1
        assert str(path) in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mix", "9"], "--mix must be from 1 to 6"),
        (["--mix", "0"], "--mix must be from 1 to 6"),
        (["--rounds", "0"], "'0' is not a whole number from 1 on"),
        (["--seconds", "1.5"], "'1.5' is not a whole number from 1 on"),
        (["--output", "/none/page.md"], "--output: /none is no directory"),
    ],
)
def test_wrong_use_is_refused_and_kept_blocks_stay(
    arguments: list[str], message: str, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--blocks", str(record.path), *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert [each.name for each in record.path.parent.iterdir()] == [record.path.name]
