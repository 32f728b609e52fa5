# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Commands in a directory of another user: none runs a file of it, nor writes through one.

Those that load probes are in ``tests/kernel/test_hostile_directory.py``.
"""

from pathlib import Path

import pytest

from controller.cli.main import COMMANDS
from tests.support.hostile.directory import COMMAND, HostileDirectory

CONFIG = """\
mode: observe
http: "off"
state_dir: {home}/state
data_dir: {home}/data
workloads:
  - {{name: web, cgroup: /no-such-cgroup, class: latency-sensitive, profile: nginx}}
"""
KOORDINATOR = """\
kind: ConfigMap
data: {colocation-config: '{"enable": true}'}
"""
RECORDING = Path(__file__).parents[2] / "replay" / "first_law.jsonl.gz"
# By command: its arguments and its exit code; None: that of this machine.
QUICK: dict[str, tuple[list[str], int | None]] = {
    "advise": (["--data-dir", "{home}/data"], 1),
    "check": (["--config", "{home}/config.yaml"], 0),
    "explain": (["--data-dir", "{home}/data", "web"], 1),
    "import-koordinator": (["{home}/koordinator.yaml"], 0),
    "init": ([], None),
    "pause": (["--state-dir", "{home}/state", "--for", "1m"], 0),
    "release": (["--state-dir", "{home}/state"], 0),
    "replay": ([str(RECORDING), "--report", "{home}/report.html"], 0),
    "resume": (["--state-dir", "{home}/state"], 0),
    "retire": (["--kubeconfig", "{home}/config.yaml", "namespace", "daemonset"], 1),
    "rollout": (["--namespace", "no/name"], 2),
    "schema": (["config"], 0),
    "status": (["--state-dir", "{home}/state"], 0),
    "completion": (["bash"], 0),
    # With children, of which two work at the same time.
    "simulate": (["--scenario", "smt", "--seconds", "2", "--warm-up", "1"], 0),
    "top": (["--config", "{home}/config.yaml", "--once"], 1),
    "trial": (["--config", "{home}/config.yaml"], 1),
}
WITH_PROBES = {"run", "doctor", "learn", "demo"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> HostileDirectory:
    return HostileDirectory(tmp_path_factory.mktemp("home") / "of-another-user")


def test_every_command_is_here_or_beside_the_kernel_tests() -> None:
    assert set(QUICK) | WITH_PROBES == set(COMMANDS)


@pytest.mark.parametrize("command", QUICK)
def test_no_command_runs_a_file_of_the_directory(
    command: str, hostile: HostileDirectory, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG.format(home=tmp_path))
    (tmp_path / "koordinator.yaml").write_text(KOORDINATOR)
    (tmp_path / "state").mkdir(mode=0o700)
    arguments, code = QUICK[command]
    done = hostile.run(COMMAND, command, *(each.format(home=tmp_path) for each in arguments))
    assert hostile.ran == []
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == (done.returncode if code is None else code), done.stderr
