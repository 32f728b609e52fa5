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

import pytest

from actuators.base import Restored, Trace
from controller.agent.restore import release
from controller.core.decision import Failure
from controller.core.model import Knob
from controller.host.facts import CgroupLayout
from controller.host.state_dir import Lock
from tests.kernel.knobs import (
    action,
    die_at,
    dump,
    executor,
    make_child,
    set_quota,
    set_weight,
    target_of,
    tmpfs,
    unwritable,
)
from tests.kernel.test_guardian import RESTORE_S, alive, guarded, wait_until

pytestmark = pytest.mark.kernel

OBSTACLES = ("full", "no inodes", "read-only")


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "state") as path:
        yield path


@pytest.fixture
def pod(cgroup_root: Path) -> Path:
    """A cgroup with a quota, a burst and a weight, which take several writes to restore."""
    pod = make_child(cgroup_root, "pod")
    set_quota(pod, 150_000, 100_000, 10_000)
    set_weight(pod, 333)
    return pod


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

    steps: list[str] = []
    while True:
        pod = make_child(cgroup_root, f"n{len(steps)}")
        set_quota(pod, 150_000, 100_000, 10_000)
        set_weight(pod, 333)
        before = dump(pod)
        target = target_of(cgroup_layout, pod)
        squeeze = [
            action(target, Knob.CPU_QUOTA, "150000 100000 10000", "5000 10000 0"),
            action(target, Knob.SCHED_IDLE, "0 333", "1"),
        ]
        executor(cgroup_layout, state_dir).execute(squeeze, now_ns=0)
        with unwritable(state_dir, obstacle):
            step = die_at(len(steps), restore)
            assert executor(cgroup_layout, state_dir).restore_all().clean, step
            assert dump(pod) == before, step
        assert executor(cgroup_layout, state_dir).restore_all().clean
        assert not list((state_dir / "journal").iterdir())
        if step is None:
            break
        steps.append(step)
    assert len([step for step in steps if step.startswith("before write")]) >= 5


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_sigterm(pod: Path, state_dir: Path, obstacle: str) -> None:
    with guarded(state_dir, pod) as program:
        program.squeezed()
        with unwritable(state_dir, obstacle):
            program.process.terminate()
            code, log = program.end()
            assert dump(pod) == program.before
    assert code == 0
    assert "Traceback" not in log


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_the_guardian_restores_and_goes_on(pod: Path, state_dir: Path, obstacle: str) -> None:
    with guarded(state_dir, pod) as program:
        agent = program.squeezed()
        with unwritable(state_dir, obstacle):
            os.kill(agent, signal.SIGKILL)
            program.wait_restored(RESTORE_S)
            program.process.terminate()
            _, log = program.end()
            assert dump(pod) == program.before
    assert "ended with -9: starting it again" in log
    assert "not all knobs could be restored" not in log


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("by", ["release", "next start"])
def test_after_both_died(
    pod: Path, state_dir: Path, obstacle: str, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with guarded(state_dir, pod) as program:
        agent = program.squeezed()
        os.kill(agent, signal.SIGSTOP)  # it must not restore by itself
        os.kill(program.pid, signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        program.process.wait()
        wait_until(lambda: not alive(agent), 2.0)
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
    squeeze = [
        action(target, Knob.CPU_QUOTA, "150000 100000 10000", "5000 10000 0"),
        action(target, Knob.SCHED_IDLE, "0 333", "1"),
    ]
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
