# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The guardian with real agent processes that are killed, suspended and stopped."""

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
from controller.host.facts import CgroupLayout
from tests.kernel.guarded_run import alive, guarded
from tests.kernel.knobs import dump, make_child, make_limited, set_quota
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.kernel

# Time limit for the restore after an agent's death.
RESTORE_S = 2.0


@pytest.fixture
def pod(cgroup_root: Path) -> Path:
    return make_limited(cgroup_root)


def may_exempt() -> bool:
    """Whether this machine lets root exempt a process from the OOM killer."""
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> 24 & 1)


def test_after_sigkill_the_agent_is_restored_and_started_again(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        first = program.squeezed()
        assert dump(pod) != program.before
        os.kill(first, signal.SIGKILL)
        program.wait_restored()
        second = program.squeezed()
        assert second != first
        assert dump(pod) != program.before
        code, log = program.stop()
    assert code == 0
    assert dump(pod) == program.before
    assert "ended with -9" in log


def test_an_agent_without_heartbeat_is_killed_and_restored(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "silent", heartbeat_s=5.0) as program:
        agent = program.squeezed()
        program.wait_restored()
        assert not alive(agent)
        code, log = program.stop()
    assert code == 0
    assert dump(pod) == program.before
    assert "is silent: killing it" in log
    assert "starting it again" in log


@pytest.mark.thorough
def test_an_agent_that_waits_for_a_cpu_is_not_killed_until_it_hangs(
    pod: Path, tmp_path: Path, cgroup_root: Path
) -> None:
    starved = make_child(cgroup_root, "starved")
    set_quota(starved, 1_000, 1_000_000)  # it runs for 1 ms, and waits for 999 ms
    with guarded(
        tmp_path, pod, f"busy:{starved}", heartbeat_s=1.0, starved_s=DEADLINE_S
    ) as program:
        agent = program.squeezed()
        squeezed = dump(pod)
        program.wait_logged("it waits for a CPU")
        assert alive(agent)
        assert dump(pod) == squeezed != program.before
        os.kill(agent, signal.SIGSTOP)  # it hangs, and waits for nothing
        program.wait_restored()
        assert not alive(agent)


def test_after_sigkill_of_both_the_next_start_restores_first(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        program.kill_both(program.squeezed())
        before = program.before
        assert dump(pod) != before
    with guarded(tmp_path, pod) as program:
        eventually("the restore", lambda: dump(pod) == before)
        program.squeezed()
        code, log = program.stop()
    assert code == 0
    assert dump(pod) == before
    assert len(re.findall("restored: .* back to", log)) >= 2


@pytest.mark.thorough
def test_an_agent_whose_guardian_is_killed_restores_and_ends(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        os.kill(program.pid, signal.SIGKILL)
        program.process.wait()
        program.wait_restored()
        eventually("the end of the agent", lambda: not alive(agent))
    assert release(tmp_path) == 0


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
def test_a_stop_signal_restores_and_exits_0(
    pod: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with guarded(tmp_path, pod) as program:
        program.squeezed()
        program.process.send_signal(signal.SIGHUP)
        assert program.process.stdout is not None
        assert program.process.stdout.readline() == "reload\n"
        program.process.send_signal(number)
        code, log = program.end()
    assert code == 0
    assert dump(pod) == program.before
    assert "killing" not in log


@pytest.mark.thorough
def test_an_agent_that_does_not_stop_is_killed_and_restored(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "deaf", stop_s=0.5) as program:
        program.squeezed()
        code, log = program.stop()
    assert code == 0
    assert dump(pod) == program.before
    assert "does not stop: killing it" in log


@pytest.mark.thorough
def test_a_stop_during_a_long_start_is_no_error(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "slow", stop_s=0.5) as program:
        program.squeezed()
        code, log = program.stop()
    assert code == 0
    assert dump(pod) == program.before
    assert "has not finished its start: ending it" in log
    assert "killing" not in log


@pytest.mark.thorough
def test_a_restore_that_hangs_or_dies_is_tried_again(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "stuck", restore_s=2.0) as program:
        first = program.squeezed()
        os.kill(first, signal.SIGKILL)
        program.wait_restored()
        assert program.squeezed() != first
        code, log = program.stop()
    assert code == 0
    assert dump(pod) == program.before
    assert "the restore took longer than 2s: trying again" in log
    assert "the restore died of signal 9: trying again" in log


@pytest.mark.thorough
def test_an_agent_that_hangs_in_the_kernel_is_restored_without_it(
    pod: Path, tmp_path: Path, cgroup_layout: CgroupLayout
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("a process in a frozen cgroup of v2 can be killed")
    freezer = freezers(cgroup_layout)[0].mount / f"{pod.parent.name}-hangs"
    freezer.mkdir()
    state = freezer / "freezer.state"
    try:
        # Not killed between its only heartbeat and the freezer, also where CPUs are scarce.
        with guarded(tmp_path, pod, f"frozen:{freezer}", heartbeat_s=10.0, stop_s=0.5) as program:
            agent = program.squeezed()
            program.wait_restored()
            assert alive(agent)
            state.write_text("THAWED")
            eventually("the death of the agent", lambda: not alive(agent))
            code, log = program.stop()
        assert code == 0
        assert dump(pod) == program.before
        assert "hangs in the kernel: going on without it" in log
        assert "starting it again" in log
    finally:
        state.write_text("THAWED")
        remove_cgroup(freezer)


@pytest.mark.thorough
def test_the_guardian_is_exempt_from_the_oom_killer_and_the_agent_is_not(
    pod: Path, tmp_path: Path
) -> None:
    if not may_exempt():
        pytest.skip("CAP_SYS_RESOURCE is missing")
    own = int(Path("/proc/self/oom_score_adj").read_text())
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        scores = [Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in (program.pid, agent)]
        program.stop()
    assert list(map(int, scores)) == [-1000, max(own, -999)]


@pytest.mark.thorough
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
    with guarded(tmp_path, pod, within=inside) as program:
        first = program.squeezed()
        hog = subprocess.run([*inside, sys.executable, "-c", "b'x' * (1 << 30)"], check=False)
        assert hog.returncode == -signal.SIGKILL
        assert "oom_group_kill 1" in (container / "memory.events").read_text()
        assert program.squeezed() != first
        code, log = program.stop()
    assert code == 0
    assert dump(pod) == program.before
    assert "the agent was ended by the memory limit of 256 MiB" in log


@pytest.mark.thorough
def test_a_guardian_that_may_not_exempt_itself_works_all_the_same(
    pod: Path, tmp_path: Path
) -> None:
    drop = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
    with guarded(tmp_path, pod, within=drop) as program:
        agent = program.squeezed()
        scores = {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in (program.pid, agent)}
        assert scores == {Path("/proc/self/oom_score_adj").read_text()}
        code, log = program.stop()
    assert code == 0
    assert "OOM" not in log


@pytest.mark.thorough
@pytest.mark.parametrize(("then", "expected"), [("wrong", 2), ("done", 0)])
def test_some_exit_codes_are_final(pod: Path, tmp_path: Path, then: str, expected: int) -> None:
    with guarded(tmp_path, pod, then) as program:
        out, log = program.process.communicate(timeout=DEADLINE_S)
    assert program.process.returncode == expected
    assert dump(pod) == program.before
    assert "starting it again" not in log
    # What a child of the agent has open: neither the lock nor the heartbeat.
    assert re.search(r"^helper 0 1 2$", out, re.MULTILINE), out


@pytest.mark.thorough
def test_a_crash_loop_ends_with_everything_restored(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, "die") as program:
        code, log = program.end()
    assert code == 1
    assert dump(pod) == program.before
    assert log.count("starting it again") == 2
    assert "died 3 times in a row: giving up" in log


@pytest.mark.thorough
def test_the_guardian_is_small(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod) as program:
        program.squeezed()
        rollup = Path(f"/proc/{program.pid}/smaps_rollup").read_text()
        maps = Path(f"/proc/{program.pid}/maps").read_text()
        program.stop()
    match = re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
    assert match is not None
    assert int(match[1]) <= 12 * 1024
    assert not re.search(r"/(numpy|pydantic|_yaml|yaml|bcc)", maps)  # paths, not addresses


@pytest.mark.timed
@pytest.mark.parametrize("killed", ["agent", "guardian"])
def test_after_a_kill_everything_is_restored_in_two_seconds(
    pod: Path, tmp_path: Path, killed: str
) -> None:
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        started_s = time.monotonic()
        os.kill(agent if killed == "agent" else program.pid, signal.SIGKILL)
        program.wait_restored()
        assert time.monotonic() - started_s < RESTORE_S


@pytest.mark.timed
def test_heartbeats_keep_an_agent_alive_and_silence_ends_it_in_time(
    pod: Path, tmp_path: Path
) -> None:
    with guarded(tmp_path, pod, heartbeat_s=1.0) as program:
        agent = program.squeezed()
        time.sleep(1.5)
        assert alive(agent)
        started_s = time.monotonic()
        os.kill(agent, signal.SIGSTOP)
        program.wait_restored()
        assert time.monotonic() - started_s < 1.0 + RESTORE_S


@pytest.mark.timed
def test_a_pause_of_the_whole_host_is_not_a_missing_heartbeat(pod: Path, tmp_path: Path) -> None:
    with guarded(tmp_path, pod, heartbeat_s=1.0) as program:
        agent = program.squeezed()
        os.kill(agent, signal.SIGSTOP)
        time.sleep(0.3)  # the guardian has read the last heartbeat
        os.kill(program.pid, signal.SIGSTOP)
        time.sleep(3.5)
        os.kill(program.pid, signal.SIGCONT)
        time.sleep(0.3)
        os.kill(agent, signal.SIGCONT)
        time.sleep(1.5)
        assert alive(agent)
        code, log = program.stop()
    assert code == 0
    assert "killing" not in log
