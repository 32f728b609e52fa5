# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Knobs are restored although the state directory is full, read-only or has no inodes.

The directory is a small tmpfs, which becomes so while knobs are held.
"""

from collections.abc import Iterator
import errno
import os
from pathlib import Path
import signal
import subprocess
import time

import pytest

from actuators.base import Restored, Trace
from controller.agent.restore import release
from controller.core.decision import Failure
from controller.core.model import Knob
from controller.host.facts import CgroupLayout
from controller.host.state_dir import Lock
from tests.kernel.crashes import assert_restorable, at_steps, die_at
from tests.kernel.guarded_run import guarded
from tests.kernel.knobs import (
    action,
    dump,
    executor,
    make_limited,
    set_quota,
    squeeze_limited,
    target_of,
)
from tests.kernel.state_dirs import OBSTACLES, tmpfs, unwritable
from tests.kernel.test_guardian import RESTORE_S

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "state") as path:
        yield path


@pytest.fixture
def pod(cgroup_root: Path) -> Path:
    return make_limited(cgroup_root)


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_the_loop_releases_what_it_can_no_longer_squeeze(
    cgroup_layout: CgroupLayout, pod: Path, state_dir: Path, obstacle: str
) -> None:
    before = dump(pod)
    target = target_of(cgroup_layout, pod)
    original, squeezed, further = "150000 100000 10000", "9000 10000 0", "5000 10000 0"
    agent = executor(cgroup_layout, state_dir)
    agent.execute([action(target, Knob.CPU_QUOTA, original, squeezed)], now_ns=0)
    with unwritable(state_dir, obstacle) as code:
        during = dump(pod)
        (outcome,) = agent.execute(
            [action(target, Knob.CPU_QUOTA, squeezed, further)], now_ns=1_000_000_000
        )
        assert (outcome.failure, outcome.errno) == (Failure.REFUSED, code)
        assert dump(pod) == during
        (outcome,) = agent.execute(
            [action(target, Knob.CPU_QUOTA, squeezed, original)], now_ns=10_000_000_000
        )
        assert outcome.failure is None
        assert outcome.original is None
        assert dump(pod) == before
    # What another program writes now is not compared with the record that could not be removed.
    set_quota(pod, 150_000, 100_000)  # without the burst, which forbids a lower quota
    set_quota(pod, 9_000, 10_000)
    (outcome,) = agent.execute(
        [action(target, Knob.CPU_QUOTA, squeezed, further)], now_ns=20_000_000_000
    )
    assert outcome.original == squeezed
    assert agent.restore_all().clean
    assert not list((state_dir / "journal").iterdir())


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_a_crash_during_a_restore_without_a_journal(
    cgroup_layout: CgroupLayout, cgroup_root: Path, state_dir: Path, obstacle: str
) -> None:
    def restore(trace: Trace) -> None:
        executor(cgroup_layout, state_dir, trace).restore_all()

    def crash(number: int) -> str | None:
        pod = make_limited(cgroup_root, f"n{number}")
        before = dump(pod)
        squeeze = squeeze_limited(target_of(cgroup_layout, pod))
        executor(cgroup_layout, state_dir).execute(squeeze, now_ns=0)
        with unwritable(state_dir, obstacle):
            step = die_at(number, restore)
            assert executor(cgroup_layout, state_dir).restore_all().clean, step
            assert dump(pod) == before, step
        assert_restorable(cgroup_layout, state_dir, step)
        return step

    steps = at_steps(crash)
    assert len([step for step in steps if step.startswith("before write")]) >= 5


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_sigterm(pod: Path, state_dir: Path, obstacle: str) -> None:
    with guarded(state_dir, pod) as program:
        program.squeezed()
        with unwritable(state_dir, obstacle):
            code, log = program.stop()
            assert dump(pod) == program.before
    assert code == 0
    assert "Traceback" not in log


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_the_guardian_restores_and_goes_on(pod: Path, state_dir: Path, obstacle: str) -> None:
    with guarded(state_dir, pod) as program:
        agent = program.squeezed()
        with unwritable(state_dir, obstacle):
            os.kill(agent, signal.SIGKILL)
            program.wait_restored()
            _, log = program.stop()
            assert dump(pod) == program.before
    assert "the agent ended with -9" in log
    assert ": starting it again" in log
    assert "not all knobs could be restored" not in log


@pytest.mark.timed
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_the_guardian_restores_in_two_seconds(pod: Path, state_dir: Path, obstacle: str) -> None:
    with guarded(state_dir, pod) as program:
        agent = program.squeezed()
        with unwritable(state_dir, obstacle):
            started_s = time.monotonic()
            os.kill(agent, signal.SIGKILL)
            program.wait_restored()
            assert time.monotonic() - started_s < RESTORE_S
            program.stop()


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("by", ["release", "next start"])
def test_after_both_died(
    pod: Path, state_dir: Path, obstacle: str, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with guarded(state_dir, pod) as program:
        program.kill_both(program.squeezed())
        before = program.before
    assert dump(pod) != before
    with unwritable(state_dir, obstacle):
        if by == "release":
            assert release(state_dir) == 0
            assert "restored" in capsys.readouterr().out
        else:
            # Where records cannot be stored, the agent of this program ends with an error.
            with guarded(state_dir, pod, "done") as program:
                code, log = program.end()
            assert code == (1 if obstacle == "read-only" else 0)
            assert len(log.split("restored: ")) >= 3
            assert "not all knobs could be restored" not in log
        assert dump(pod) == before
    assert release(state_dir) == 0
    assert not list((state_dir / "journal").iterdir())


def test_the_lock_of_a_read_only_directory(
    state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with unwritable(state_dir, "read-only"):
        for _ in range(2):
            caplog.clear()
            lock = Lock(state_dir)
            lock.set_owners([os.getpid()])
            assert len(caplog.records) == 1
            assert "lock: " in caplog.text
            assert "release --stop" in caplog.text
            assert subprocess.run(["flock", "-n", str(state_dir), "true"]).returncode == 1
            lock.close()
    Lock(state_dir).close()
    with unwritable(state_dir, "read-only"):
        Lock(state_dir).close()


def test_a_failed_removal_is_reported_once_and_tried_again(
    cgroup_layout: CgroupLayout, pod: Path, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = target_of(cgroup_layout, pod)
    agent = executor(cgroup_layout, state_dir)
    squeeze = squeeze_limited(target)
    agent.execute(squeeze, now_ns=0)
    with unwritable(state_dir, "read-only"):
        report = agent.restore_all()
        assert {r.result for r in report.results} == {Restored.RESTORED}
        assert caplog.text.count("without effect") == 2
        assert os.strerror(errno.EROFS) in caplog.text
    assert len(list((state_dir / "journal").iterdir())) == 2
    agent.execute(squeeze[:1], now_ns=1)
    assert agent.restore_all().clean
    assert not list((state_dir / "journal").iterdir())
    assert caplog.text.count("without effect") == 2
