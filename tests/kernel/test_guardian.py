# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The guardian with real agent processes that are killed, suspended and stopped."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import time

import pytest

from actuators.freezer import freezers
from controller.agent.restore import release
from controller.core.model import Knob
from controller.host.facts import CgroupLayout
from tests.kernel.knobs import (
    action,
    dump,
    executor,
    make_child,
    set_quota,
    set_weight,
    target_of,
)
from tests.support.cgroups import remove_cgroup

pytestmark = pytest.mark.kernel

# Time limit for the restore after an agent's death.
RESTORE_S = 2.0


@pytest.fixture
def pod(cgroup_root: Path) -> Path:
    """A cgroup with a quota and a weight."""
    pod = make_child(cgroup_root, "pod")
    set_quota(pod, 150_000, 100_000, 10_000)
    set_weight(pod, 333)
    return pod


class Guarded:
    """The running program ``guarded``; ``before`` are the knobs of its cgroup at the start."""

    def __init__(self, state_dir: Path, pod: Path, then: str, within: Sequence[str]) -> None:
        self.pod, self.before = pod, dump(pod)
        program = (sys.executable, "-m", "tests.kernel.guarded", str(state_dir), str(pod), then)
        command = [*within, *program]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def squeezed(self) -> int:
        """Wait until the agent has squeezed the cgroup and return the agent's pid."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.match(r"squeezed (\d+)", line):
                return int(match[1])
        raise AssertionError(self.process.communicate()[1])

    def wait_restored(self, seconds: float) -> float:
        """Wait until the knobs are as before and return how long that took."""
        return wait_until(lambda: dump(self.pod) == self.before, seconds)

    def end(self, seconds: float = 10.0) -> tuple[int, str]:
        """Wait for the end of the program and return its exit code and log."""
        log = self.process.communicate(timeout=seconds)[1]
        return self.process.returncode, log


@contextmanager
def guarded(
    state_dir: Path, pod: Path, then: str = "live", within: Sequence[str] = ()
) -> Iterator[Guarded]:
    program = Guarded(state_dir, pod, then, within)
    try:
        yield program
    finally:
        lines = (state_dir / "lock").read_text().split("\n") if state_dir.exists() else []
        pids = {int(line.split()[0]) for line in lines if line} & children(program.pid)
        for pid in [program.pid, *pids]:
            if program.process.poll() is None:
                os.kill(pid, signal.SIGKILL)
        program.process.communicate()


def children(pid: int) -> set[int]:
    try:
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return set()


def wait_until(condition: Callable[[], bool], seconds: float) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "too late"
        time.sleep(0.005)
    return time.monotonic() - start


def may_exempt() -> bool:
    """Whether this machine lets root exempt a process from the OOM killer."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> 24 & 1)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_after_sigkill_the_agent_is_restored_and_started_again(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        first = program.squeezed()
        assert dump(pod) != program.before
        os.kill(first, signal.SIGKILL)
        # The knobs stay restored only until the next agent squeezes again.
        took_s = program.wait_restored(RESTORE_S)
        assert took_s < RESTORE_S
        second = program.squeezed()
        assert second != first
        program.process.terminate()
        code, log = program.end()
    assert code == 0
    assert dump(pod) == program.before
    assert "ended with -9" in log


def test_an_agent_without_heartbeat_is_killed_and_restored(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        time.sleep(1.5)  # longer than heartbeat_s: the agent sends heartbeats
        assert alive(agent)
        os.kill(agent, signal.SIGSTOP)
        program.wait_restored(1.0 + RESTORE_S)
        assert not alive(agent)
        assert program.squeezed() != agent
        program.process.terminate()
        code, log = program.end()
    assert code == 0
    assert "is silent: killing it" in log


def test_after_sigkill_of_both_the_next_start_restores_first(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        os.kill(agent, signal.SIGSTOP)  # it must not restore by itself
        os.kill(program.pid, signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        program.process.wait()
        wait_until(lambda: not alive(agent), 2.0)
        before = program.before
        assert dump(pod) != before
    with guarded(tmp_path, pod) as program:
        # The original value of this run is that from before the first run: it was restored.
        program.squeezed()
        program.process.terminate()
        code, log = program.end()
    assert code == 0
    assert dump(pod) == before
    assert len(re.findall("restored: .* back to", log)) >= 2


def test_an_agent_whose_guardian_is_killed_restores_and_ends(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        os.kill(program.pid, signal.SIGKILL)
        program.process.wait()
        program.wait_restored(RESTORE_S)
        wait_until(lambda: not alive(agent), 2.0)
    assert release(tmp_path) == 0


def test_a_pause_of_the_whole_host_is_not_a_missing_heartbeat(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        time.sleep(0.3)  # until the first heartbeat start_s applies
        os.kill(agent, signal.SIGSTOP)
        time.sleep(0.3)  # the guardian has read the last heartbeat
        os.kill(program.pid, signal.SIGSTOP)
        time.sleep(3.5)
        os.kill(program.pid, signal.SIGCONT)
        time.sleep(0.3)
        os.kill(agent, signal.SIGCONT)
        time.sleep(1.5)
        assert alive(agent)
        program.process.terminate()
        code, log = program.end()
    assert code == 0
    assert "killing" not in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_restores_and_exits_0(
    pod: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with guarded(tmp_path, pod) as program:
        program.squeezed()
        program.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        program.process.send_signal(number)
        out, log = program.process.communicate(timeout=5)
    assert program.process.returncode == 0
    assert "reload" in out
    assert dump(pod) == program.before
    assert "killing" not in log


def test_an_agent_that_does_not_stop_is_killed_and_restored(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "deaf") as program:
        program.squeezed()
        program.process.terminate()
        code, log = program.end()
    assert code == 0
    assert dump(pod) == program.before
    assert "does not stop: killing it" in log


def test_a_stop_during_a_long_start_is_no_error(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "slow") as program:
        program.squeezed()
        program.process.terminate()
        code, log = program.end()
    assert code == 0
    assert dump(pod) == program.before
    assert "has not finished its start: ending it" in log
    assert "killing" not in log


def test_a_restore_that_hangs_or_dies_is_tried_again(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "stuck") as program:
        first = program.squeezed()
        os.kill(first, signal.SIGKILL)
        program.wait_restored(2.0 + 2 * RESTORE_S)
        assert program.squeezed() != first
        program.process.terminate()
        code, log = program.end()
    assert code == 0
    assert dump(pod) == program.before
    assert "the restore took longer than 2s: trying again" in log
    assert "the restore died of signal 9: trying again" in log


def test_an_agent_that_hangs_in_the_kernel_is_restored_without_it(
    pod: Path, tmp_path: Path, cgroup_layout: CgroupLayout
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("a process in a frozen cgroup of v2 can be killed")
    freezer = freezers(cgroup_layout)[0].mount / f"{pod.parent.name}-hangs"
    freezer.mkdir()
    state = freezer / "freezer.state"
    try:
        with guarded(tmp_path, pod) as program:
            agent = program.squeezed()
            time.sleep(0.3)  # until the first heartbeat start_s applies
            (freezer / "cgroup.procs").write_text(str(agent))
            state.write_text("FROZEN")  # on v1 not even SIGKILL ends it
            program.wait_restored(3.0 + RESTORE_S)
            assert alive(agent)
            assert program.squeezed() != agent
            state.write_text("THAWED")
            program.process.terminate()
            code, log = program.end()
        assert code == 0
        assert "hangs in the kernel: going on without it" in log
        assert dump(pod) == program.before
    finally:
        state.write_text("THAWED")
        remove_cgroup(freezer)


def test_the_guardian_is_exempt_from_the_oom_killer_and_the_agent_is_not(
    pod: Path, tmp_path: Path
) -> None:
    if not may_exempt():
        pytest.skip("CAP_SYS_RESOURCE is missing")
    own = int(Path("/proc/self/oom_score_adj").read_text())
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        scores = [Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in (program.pid, agent)]
        program.process.terminate()
        program.end()
    assert list(map(int, scores)) == [-1000, max(own, -999)]


def test_the_guardian_survives_an_oom_kill_of_its_whole_cgroup(
    pod: Path, cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    if cgroup_layout.version == "v1" or not may_exempt():
        pytest.skip("needs cgroup v2 and CAP_SYS_RESOURCE")
    (cgroup_layout.mount / "cgroup.subtree_control").write_text("+memory")
    (cgroup_root / "cgroup.subtree_control").write_text("+memory")
    container = cgroup_root / "container"
    container.mkdir()
    (container / "memory.oom.group").write_text("1")  # as kubelet does since 1.28
    (container / "memory.max").write_text(str(256 << 20))
    inside = ("sh", "-ec", f'echo $$ > {container}/cgroup.procs; exec "$@"', "-")
    with guarded(tmp_path, pod, "slow", within=inside) as program:
        first = program.squeezed()
        hog = subprocess.run([*inside, sys.executable, "-c", "b'x' * (1 << 30)"], check=False)
        assert hog.returncode == -signal.SIGKILL
        assert "oom_group_kill 1" in (container / "memory.events").read_text()
        assert program.squeezed() != first
        program.process.terminate()
        code, log = program.end(30)
    assert code == 0
    assert dump(pod) == program.before
    assert "the agent ended with -9" in log


def test_a_guardian_that_may_not_exempt_itself_works_all_the_same(
    pod: Path, tmp_path: Path
) -> None:
    drop = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
    with guarded(tmp_path, pod, within=drop) as program:
        agent = program.squeezed()
        scores = {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in (program.pid, agent)}
        assert scores == {Path("/proc/self/oom_score_adj").read_text()}
        program.process.terminate()
        code, log = program.end()
    assert code == 0
    assert "OOM" not in log


@pytest.mark.parametrize(("then", "expected"), [("wrong", 2), ("done", 0)])
def test_some_exit_codes_are_final(pod: Path, tmp_path: Path, then: str, expected: int) -> None:
    with guarded(tmp_path, pod, then) as program:
        code, log = program.end()
    assert code == expected
    assert dump(pod) == program.before
    assert "starting it again" not in log


def test_a_crash_loop_ends_with_everything_restored(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "die") as program:
        code, log = program.end()
    assert code == 1
    assert dump(pod) == program.before
    assert log.count("starting it again") == 2
    assert "died 3 times in a row: giving up" in log


def test_a_child_of_the_agent_holds_neither_lock_nor_heartbeat(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "done") as program:
        out, _ = program.process.communicate(timeout=10)
    assert re.search(r"^helper 0 1 2$", out, re.MULTILINE), out


def test_errors_of_a_second_agent_and_a_release_name_the_running_agent(
    pod: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        during = dump(pod)
        with guarded(tmp_path, pod) as second:
            code, log = second.end()
        assert code == 1
        assert f"already runs on this host ({program.pid} and {agent} hold" in log
        assert "release --stop" in log
        assert release(tmp_path) == 1
        assert "already runs" in capsys.readouterr().err
        assert dump(pod) == during

        assert release(tmp_path, stop=True) == 0
        assert dump(pod) == program.before
        assert program.end()[0] == 0
    assert f"sending SIGTERM to {program.pid}" in capsys.readouterr().out


def test_release_stops_a_suspended_agent(
    pod: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        os.kill(agent, signal.SIGSTOP)
        os.kill(program.pid, signal.SIGSTOP)
        assert release(tmp_path, stop=True, timeout_s=0.5) == 0
        assert program.end()[0] == -signal.SIGKILL
        assert not alive(agent)
    out = capsys.readouterr().out
    assert dump(pod) == program.before
    assert re.search(r"^restored +/\S+ cpu\.quota: '5000 10000 0' back to", out, re.MULTILINE)


def test_release_reports_foreign_values_and_missing_cgroups(
    cgroup_layout: CgroupLayout,
    pod: Path,
    cgroup_root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = make_child(cgroup_root, "gone")
    cut = {pod: "150000 100000 10000", gone: "max 100000 0"}
    executor(cgroup_layout, tmp_path).execute(
        [
            action(target_of(cgroup_layout, path), Knob.CPU_QUOTA, now, "5000 10000 0")
            for path, now in cut.items()
        ],
        now_ns=0,
    )
    gone.rmdir()
    set_quota(pod, 77_000, 100_000)
    before = dump(pod)
    assert release(tmp_path) == 0
    lines = sorted(capsys.readouterr().out.splitlines())
    assert [line.split()[0] for line in lines] == ["foreign", "gone"]
    assert "77000 100000 0" in lines[0]
    assert dump(pod) == before
    assert release(tmp_path) == 0
    assert capsys.readouterr().out == "nothing to restore\n"


def test_the_guardian_is_small(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        program.squeezed()
        rollup = Path(f"/proc/{program.pid}/smaps_rollup").read_text()
        maps = Path(f"/proc/{program.pid}/maps").read_text()
        program.process.terminate()
        program.end()
    match = re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
    assert match is not None
    assert int(match[1]) <= 12 * 1024
    assert not re.search(r"/(numpy|pydantic|_yaml|yaml|bcc)", maps)  # paths, not addresses
