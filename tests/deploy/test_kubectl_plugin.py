# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``kubectl sweetpoint`` as a program, with a kubectl that answers from files."""

import ast
import contextlib
from dataclasses import fields
import os
from pathlib import Path
import signal
import subprocess
import time

import pytest

from controller.cli import common, top_pages
from controller.cli.held import WorstRow, of_page
from controller.cli.main import COMMANDS
from controller.cli.status import plain
from controller.host.names import printable
from controller.host.pause_file import LONGEST_S, parse_end
from controller.kube.own_node import PAUSE_KEY
from deploy import kubectl_sweetpoint as plugin
from tests.deploy.fake_kubectl import HOSTILE, PLUGIN, FakeCluster, page, rows
from tests.support.waiting import DEADLINE_S, eventually


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path)


def test_names_that_would_be_options_are_no_pods(cluster: FakeCluster) -> None:
    cluster.agent("n1", pod="--kubeconfig=/etc/passwd")
    cluster.agent("n1", namespace="-x")
    assert rows(cluster.run("status", "n1")) == ["n1 - - - - - no agent runs here"]
    for node in ("-x", "n1,status.phase=Pending", "N1", "a" * 254):
        assert cluster.run("doctor", "--", node).returncode == 2
    assert not [each for each in cluster.calls() if each.startswith("exec")]


def test_without_kubectl(cluster: FakeCluster) -> None:
    (cluster.home / "kubectl").unlink()
    python = Path(os.path.realpath("/usr/bin/python3"))
    (cluster.home / "python3").symlink_to(python)
    done = subprocess.run(
        [cluster.home / "python3", PLUGIN, "status"],
        env={"PATH": str(cluster.home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "kubectl cannot be started (No such file or directory); install it" in done.stderr


def test_pause_and_resume_annotate_the_node(cluster: FakeCluster) -> None:
    done = cluster.run("pause", "n1", "--for", "4h", "--reason", "kernel upgrade", "--context=c")
    assert done.returncode == 0, done.stderr
    assert "kubectl sweetpoint status n1" in done.stdout
    assert cluster.run("pause", "n1").returncode == 0
    assert cluster.run("resume", "n1").returncode == 0
    first, again, end = cluster.calls()
    head = "--context=c annotate node n1 --overwrite sweetpoint.dev/pause=20"
    assert first.startswith(head)
    assert first.endswith("Z sweetpoint.dev/pause-reason=kernel upgrade")
    # The reason of an earlier pause would be wrong.
    assert again.endswith("Z sweetpoint.dev/pause-reason-")
    assert end == "annotate node n1 sweetpoint.dev/pause- sweetpoint.dev/pause-reason-"


@pytest.mark.parametrize(
    "words",
    [
        ("pause", "n1", "--for", "soon"),
        ("pause", "n1", "--for", "-1h"),
        ("pause", "n1", "--reason", "a\nb"),
        ("pause",),
        ("pause", "N1"),
        ("status", "--parallel", "0"),
        ("status", "--timeout", "nan"),
        ("status", "-o", "yaml"),
        ("frobnicate\x1b",),
        (),
    ],
)
def test_wrong_use_is_one_line(cluster: FakeCluster, words: tuple[str, ...]) -> None:
    done = cluster.run(*words)
    assert (done.returncode, done.stdout, cluster.calls()) == (2, "", [])
    (line,) = done.stderr.splitlines()
    assert line.isprintable()


@pytest.mark.parametrize("command", ["top", "explain", "doctor", "trial"])
def test_other_commands_run_those_of_the_agent(cluster: FakeCluster, command: str) -> None:
    cluster.agent("n1", f"first\r\na\tb {HOSTILE.encode(errors='replace').decode()}\nlast")
    words = ("web", "--since", "2h", "--context", "inside")
    done = cluster.run(command, "--context", "c", "n1", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "first\na       b x\\x1b[2J\n\\u202e?\nlast"
    *_, call = cluster.calls()
    assert call.startswith("--context=c exec -n ns agent-n1 -c agent -- /opt/sweetpoint/")
    assert call.endswith(f"/sweetpoint {command} {' '.join(words)}")
    get = next(each for each in cluster.calls() if " get pods " in each)
    assert "--field-selector=spec.nodeName=n1" in get


def test_the_errors_of_the_command_in_the_pod_are_shown(cluster: FakeCluster) -> None:
    cluster.agent("n1")
    (cluster.home / "agent-n1.err").write_text("sweetpoint: \x1b[2J no history\n")
    done = cluster.run("explain", "n1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sweetpoint: \\x1b[2J no history\n"


def test_a_node_without_an_agent(cluster: FakeCluster) -> None:
    done = cluster.run("top", "n7")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no agent runs on node n7" in done.stderr
    assert "kubectl sweetpoint status" in done.stderr


@pytest.mark.parametrize("command", [["status"], ["top", "n1"]])
def test_an_interrupt_ends_it_and_each_kubectl(cluster: FakeCluster, command: list[str]) -> None:
    cluster.agent("n1")
    (cluster.home / "agent-n1.hang").touch()
    process = subprocess.Popen(
        [PLUGIN, *command],
        env=cluster.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            (kubectl,) = eventually("a kubectl that waits", lambda: asleep(process.pid))
            process.send_signal(signal.SIGINT)  # to it alone, as from another program
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "")
    assert not Path(f"/proc/{kubectl}").exists()


def asleep(parent: int) -> list[int]:
    """Return the children of *parent* that execute sleep; others may end at any moment."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        tasks = Path(f"/proc/{parent}/task").glob("*/children")
        pids = [pid for task in tasks for pid in task.read_text().split()]
        return [int(pid) for pid in pids if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return []


def test_a_reader_that_has_seen_enough(cluster: FakeCluster) -> None:
    cluster.agent("n1")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [PLUGIN, "status"], env=cluster.environment(), stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_help_names_each_command(cluster: FakeCluster) -> None:
    done = cluster.run("--help")
    assert done.returncode == 0
    for command in ("status", "top", "explain", "pause", "resume", "trial", "doctor"):
        assert f"    {command}" in done.stdout
        assert cluster.run(command, "--help").returncode == 0


def test_it_is_one_file_for_older_versions_of_python() -> None:
    tree = ast.parse(PLUGIN.read_text(), feature_version=(3, 9))
    names = {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [each.name for each in node.names]
        )
    }
    assert not {each for each in names if each.startswith(("controller", "tests", "tools"))}
    assert os.access(PLUGIN, os.X_OK)


def test_it_agrees_with_the_agent() -> None:
    """One file cannot import what it has in common with the agent."""
    assert plugin._PAUSE == PAUSE_KEY
    assert (plugin._AGENT, plugin._LABEL) == (top_pages._IN_IMAGE, top_pages._LABEL)
    assert {*plugin._INSIDE, *plugin._COMMANDS} <= {*COMMANDS}
    assert (plugin.DONE, plugin.FAILED, plugin.WRONG) == (common.DONE, common.FAILED, common.WRONG)
    assert page().keys() <= plain(of_page({}, 0)).keys()
    worst = page()["worst"]
    assert isinstance(worst, dict)
    assert worst.keys() <= {each.name for each in fields(WorstRow)}
    for duration, length_s in (("90s", 90), ("30m", 1800), ("4h", 4 * 3600), ("7d", LONGEST_S)):
        before_s = time.time()
        end_s = parse_end(plugin._end(duration), time.time())
        assert int(before_s) <= end_s - length_s <= time.time()


def test_the_page_has_its_defaults() -> None:
    text = " ".join((PLUGIN.parents[1] / "docs" / "KUBERNETES.md").read_text().split())
    given = plugin._parser().parse_args(["status"])
    assert f"It asks {given.parallel} nodes at a time" in text
    assert f"gives each {given.timeout:g} s (`--timeout`)" in text


def test_its_text_is_made_printable_as_by_the_agent() -> None:
    for text in (HOSTILE, "é", "a'b\\", "\t\x7f"):
        assert plugin.printable(text) == printable(text)
