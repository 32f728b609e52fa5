# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint release`` beside agents that run, are suspended or are gone."""

import os
from pathlib import Path
import re
import signal

import pytest

from controller.agent.restore import release
from controller.core.model import Knob
from controller.host.facts import CgroupLayout
from tests.kernel.guarded_run import alive, guarded
from tests.kernel.knobs import (
    action,
    dump,
    executor,
    make_child,
    make_limited,
    set_quota,
    target_of,
)

pytestmark = pytest.mark.kernel


@pytest.fixture
def pod(cgroup_root: Path) -> Path:
    return make_limited(cgroup_root)


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


@pytest.mark.thorough
def test_it_stops_a_suspended_agent(
    pod: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with guarded(tmp_path, pod) as program:
        agent = program.squeezed()
        os.kill(agent, signal.SIGSTOP)
        os.kill(program.pid, signal.SIGSTOP)
        # The limit holds for SIGTERM, which is in vain, and for the end of the killed processes.
        assert release(tmp_path, stop=True, timeout_s=10.0) == 0
        assert program.end()[0] == -signal.SIGKILL
        assert not alive(agent)
    out = capsys.readouterr().out
    assert dump(pod) == program.before
    assert re.search(r"^restored +/\S+ cpu\.quota: '5000 10000 0' back to", out, re.MULTILINE)


def test_it_reports_foreign_values_and_missing_cgroups(
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
    set_quota(pod, 77_000, 100_000, 7_000)
    before = dump(pod)
    assert release(tmp_path) == 0
    lines = sorted(capsys.readouterr().out.splitlines())
    assert [line.split()[0] for line in lines] == ["foreign", "gone"]
    assert "77000 100000 7000" in lines[0]
    assert dump(pod) == before
    assert release(tmp_path) == 0
    assert capsys.readouterr().out == "nothing to restore\n"
