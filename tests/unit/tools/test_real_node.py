# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""tools/real-node with a fake compiler: cached results, failures, interruption."""

import os
from pathlib import Path
import shutil
import signal
import subprocess

import pytest

from tests.support.waiting import DEADLINE_S, eventually

ROOT = Path(__file__).resolve().parents[3]
MODULE = "tests/kube/programs"
# A fake Go that prints its release and writes its arguments to a file of the output directory.
QUICK = """#!/bin/sh
[ "$1 $2" = "env GOVERSION" ] && { echo go1.26.0; exit; }
for last; do [ "${previous:-}" = -o ] && out=$last; previous=$last; done
echo "$CGO_ENABLED $@" >>"${out:-$GOBIN/}arguments"
"""
ENDLESS = """#!/bin/sh
[ "$1 $2" = "env GOVERSION" ] && { echo go1.26.0; exit; }
echo $$ >"$HOME/go.pid"
exec sleep 600
"""
FAILING = """#!/bin/sh
[ "$1 $2" = "env GOVERSION" ] && { echo go1.26.0; exit; }
echo "main.go: no such thing"
exit 1
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree whose .venv takes precedence over the installed compiler."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/real-node", tmp_path / "tools")
    shutil.copytree(ROOT / MODULE, tmp_path / MODULE)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    return tmp_path


def command(tree: Path, go: str, verb: str) -> tuple[list[str], dict[str, str]]:
    compiler = tree / ".venv/bin/go"
    compiler.write_text(go)
    compiler.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tree), "XDG_CACHE_HOME": f"{tree}/cache"}
    return [str(tree / "tools/real-node"), verb], environment


def run(tree: Path, go: str, verb: str) -> subprocess.CompletedProcess[str]:
    arguments, environment = command(tree, go, verb)
    return subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
    )


def left_over(tree: Path) -> list[str]:
    return [path.name for path in (tree / "cache/sweetpoint/real-node").glob("build-*")]


def ended(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"  # not reaped by its new parent yet


def test_it_is_built_once_per_version_of_the_sources(tree: Path) -> None:
    assert run(tree, QUICK, "path").returncode == 1
    built = run(tree, QUICK, "build")
    assert built.returncode == 0, built.stderr
    path = Path(run(tree, QUICK, "path").stdout.strip())
    kubernetes, *containerd, runc = (path / "arguments").read_text().splitlines()
    assert kubernetes.startswith("0 build") and "/version.gitVersion=v1." in kubernetes
    assert [line.rpartition("/")[2].split("@")[0] for line in containerd] == [
        *("containerd", "containerd-shim-runc-v2", "ctr")
    ]
    assert runc.startswith("1 install") and "-tags seccomp" in runc
    again = run(tree, FAILING, "build")
    assert (again.returncode, again.stdout) == (0, "")
    with (tree / MODULE / "kubelet/main.go").open("a") as source:
        source.write("// changed\n")
    other = run(tree, QUICK, "path")
    assert other.returncode == 1 and Path(other.stdout.strip()) != path
    assert left_over(tree) == []


def test_the_output_of_a_failing_compiler_is_printed(tree: Path) -> None:
    built = run(tree, FAILING, "build")
    assert built.returncode == 1
    assert "main.go: no such thing" in built.stderr and "do not build" in built.stderr
    assert run(tree, FAILING, "path").returncode == 1
    assert left_over(tree) == []


def test_an_interrupted_build_leaves_nothing(tree: Path) -> None:
    arguments, environment = command(tree, ENDLESS, "build")
    pid_file = tree / "go.pid"
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL) as build:
        eventually("the compiler", lambda: pid_file.exists() and pid_file.read_text())
        build.send_signal(signal.SIGTERM)
        assert build.wait(timeout=DEADLINE_S) == 130
    assert ended(int(pid_file.read_text()))
    assert left_over(tree) == []


def test_wrong_usage(tree: Path) -> None:
    done = run(tree, QUICK, "everything")
    assert done.returncode == 2 and done.stderr.startswith("usage: tools/real-node path")
