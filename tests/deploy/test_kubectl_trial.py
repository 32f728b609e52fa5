# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``kubectl sweetpoint trial`` of a pool, with a kubectl that answers from files."""

import argparse
import json
from pathlib import Path
import re
import signal
import subprocess

import pytest

from controller.cli import trial, trial_background
from controller.trial.blocks import Arm
from deploy import kubectl_sweetpoint as plugin
from tests.deploy.fake_kubectl import HOSTILE, PLUGIN, FakeCluster
from tests.deploy.pool_reports import LABEL, report
from tests.support.waiting import DEADLINE_S, eventually

POOL = ("-l", "pool=batch", "--interval", "0.1")
FAST = ("-l", "pool=batch", "--interval", "0.01")
SILENT = OSError("error: i/o timeout")
BEGUN = {"node": "n", "seed": 5, "pairs": 30}
STOPPED = "ended: the trial in the background\n"


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    """Return a cluster whose pool has three nodes with an agent."""
    found = FakeCluster(tmp_path)
    found.nodes("n1", "n2", "n3")
    for number, node in enumerate(("n1", "n2", "n3")):
        found.agent(node)
        found.answer(node, "--background", BEGUN)
        found.answer(node, "--stop", STOPPED)
        found.answer(node, "--latest", report(number, 0.1, 0.8))
    return found


def running(cluster: FakeCluster, *nodes: str) -> None:
    for number, node in enumerate(nodes):
        state = trial_background.State.RUNNING
        cluster.answer(node, "--latest", report(number, 0.1, 0.8, state=state))


# What a node says while its trial runs.
RUNS = report(0, 0.1, 0.8, state=trial_background.State.RUNNING)


def words(cluster: FakeCluster, option: str) -> list[str]:
    """Return what follows the agent's command in the calls with *option*."""
    calls = [each for each in cluster.calls() if f" {option}" in each]
    return [each.partition("/sweetpoint/bin/sweetpoint ")[2] for each in calls]


def test_start_begins_a_trial_on_each_node_and_follows_it(cluster: FakeCluster) -> None:
    done = cluster.run("trial", "start", *POOL, "--for", "4h", "--paused=20%")
    assert (done.returncode, done.stderr) == (0, "")
    begun = words(cluster, "--background")
    label = re.compile(r"trial --background --json --label=20\S+Z --for=4h --paused=20%")
    assert len(begun) == 3 and all(map(label.fullmatch, begun))
    assert len({*begun}) == 1
    get = next(each for each in cluster.calls() if each.startswith("get nodes"))
    assert " -l pool=batch,sweetpoint.dev/agent!=off " in get
    lines = done.stdout.splitlines()
    assert lines[0] == "n1: 30 pairs, order 5"
    assert re.fullmatch(r"trial 20\S+Z on 3 of 3 nodes", lines[3])
    assert lines[4] == "0 of 3 nodes run, 90 of 90 pairs"
    assert lines[5].startswith(
        f"{lines[3].partition(' on ')[0]} of enforcing and paused: 3 nodes, "
    )
    assert lines[6].startswith("  web: -") and lines[6].endswith(" on 3 nodes: better")
    assert lines[7].startswith("  best-effort work: ratio 0.") and lines[7].endswith(": worse")
    assert [each.partition(" pairs, order 7: ")[0] for each in lines[8:]] == [
        "n1: 30",
        "n2: 30",
        "n3: 30",
    ]


def test_start_without_a_watch_says_what_nobody_does(cluster: FakeCluster) -> None:
    cluster.answer("n2", "--background", "")
    (cluster.home / "agent-n2.--background.err").write_text("sweetpoint: the agent is paused\n")
    cluster.nodes("n1", "n2", "n3", "n4")
    done = cluster.run("trial", "start", *POOL, "--no-watch")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[1] == "n2: not begun: sweetpoint: the agent is paused"
    assert lines[3] == "n4: not begun: no agent runs here"
    assert lines[4].endswith(" on 2 of 4 nodes")
    assert lines[5].startswith("nobody watches: with 2 hurt nodes the others go on")
    assert words(cluster, "--latest") == []


def test_a_file_of_this_host_is_given_to_each_agent(cluster: FakeCluster, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nset: {reserve: 0cpu}\n")
    done = cluster.run("trial", "start", *POOL, "--no-watch", "--against", str(file))
    assert done.returncode == 0, done.stderr
    assert all(each.endswith(" --against=-") for each in words(cluster, "--background"))
    for node in ("n1", "n2", "n3"):
        assert (cluster.home / f"agent-{node}.in").read_text() == file.read_text()
    for wrong in (str(tmp_path / "none"), "/dev/null", "/dev/zero"):
        done = cluster.run("trial", "start", *POOL, "--against", wrong)
        assert (done.returncode, done.stdout) == (2, "")


def test_status_has_a_line_for_each_node(cluster: FakeCluster) -> None:
    running(cluster, "n1")
    cluster.answer("n3", "--latest", report(9, label="2026-11-01T00:00:00Z"))
    cluster.nodes("n1", "n2", "n3", "n4")
    done = cluster.run("trial", "status", "-l", "pool=batch")
    assert done.returncode == 1
    assert [" ".join(each.split()) for each in done.stdout.splitlines()] == [
        "NODE TRIAL PAIRS ORDER LEFT OUT",
        "n1 running 30 of 30 7 -",
        "n2 ended 30 of 30 7 -",
        "n3 ended 30 of 30 7 its last trial is another one (2026-11-01T00:00:00Z)",
        "n4 - - - no agent runs here",
    ]
    done = cluster.run("trial", "status", "-l", "pool=batch", "-o", "json")
    found = json.loads(done.stdout)
    assert (found["label"], found["hurt"]) == (LABEL, [])
    assert [each["left_out"] != "" for each in found["nodes"]] == [False, False, True, True]
    assert words(cluster, "--stop") == []


def hurt(cluster: FakeCluster, *nodes: str) -> None:
    for number, node in enumerate(nodes):
        page = report(number, ended="pausing hurts web", hurt=Arm.PAUSE)
        cluster.answer(node, "--latest", page)


def test_two_hurt_nodes_end_the_trials_of_the_pool(cluster: FakeCluster) -> None:
    hurt(cluster, "n1", "n2")
    running(cluster, "n3")
    cluster.answer("n3", "stopped", report(3, ended=trial_background.INTERRUPTED))
    done = cluster.run("trial", "status", "-l", "pool=batch")
    assert "2 nodes were hurt (n1, n2): end the pool's trial with" in done.stdout
    assert (done.returncode, words(cluster, "--stop")) == (1, [])
    done = cluster.run("trial", "status", *POOL, "--watch")
    assert done.returncode == 1
    assert words(cluster, "--stop") == ["trial --stop"] * 3
    lines = done.stdout.splitlines()
    assert lines[0] == "1 of 3 nodes run, 90 of 90 pairs; hurt: n1, n2"
    assert lines[1] == "2 nodes were hurt: the pool's trial ends"
    assert "  no verdict, because 2 nodes were hurt" in lines
    assert "n1: left out: a service was hurt: pausing hurts web" in lines


def test_harm_of_an_earlier_trial_does_not_end_the_one_that_was_begun(cluster: FakeCluster) -> None:
    old = "2026-11-01T00:00:00Z"
    for node in ("n1", "n2"):
        cluster.answer(node, "--latest", report(1, label=old, ended="x", hurt=Arm.PAUSE))
        (cluster.home / f"agent-{node}.--background.err").write_text("the agent is paused\n")
    done = cluster.run("trial", "start", *POOL)
    assert done.returncode == 1
    assert words(cluster, "--stop") == []
    assert "n3: 30 pairs, order 7: " in done.stdout
    assert f"n1: left out: its last trial is another one ({old})" in done.stdout


def test_one_hurt_node_ends_nothing(cluster: FakeCluster) -> None:
    hurt(cluster, "n1")
    done = cluster.run("trial", "report", "-l", "pool=batch", "-o", "json")
    found = json.loads(done.stdout)
    assert done.returncode == 1  # two nodes have no verdict
    assert found["hurt"] == ["n1"] and len(found["nodes"]) == 2
    assert found["left_out"] == {"n1": "a service was hurt: pausing hurts web"}
    assert words(cluster, "--stop") == []


def test_a_watch_waits_for_a_node_that_ran_and_does_not_answer(cluster: FakeCluster) -> None:
    runs, ended = RUNS, report(0, 0.1, 0.8)
    cluster.answers("agent-n1.--latest", runs, SILENT, runs, ended)
    done = cluster.run("trial", "status", "--watch", *FAST)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "1 of 3 nodes run, 90 of 90 pairs",
        "0 of 3 nodes run, 60 of 60 pairs",
        "1 of 3 nodes run, 90 of 90 pairs",
        "0 of 3 nodes run, 90 of 90 pairs",
    ]
    assert "3 nodes, 90 pairs" in lines[4]


def watch(cluster: FakeCluster) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [PLUGIN, "trial", "status", "--watch", *POOL],
        env={**cluster.environment(), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_an_interrupt_ends_the_watch_and_says_that_trials_go_on(cluster: FakeCluster) -> None:
    running(cluster, "n1")
    process = watch(cluster)
    with process:
        try:
            eventually("a look", lambda: words(cluster, "--latest"))
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.endswith("trials that began go on; 'kubectl sweetpoint trial stop' ends them\n")
    assert words(cluster, "--stop") == []


def test_stop_ends_each_and_names_what_does_not_answer(cluster: FakeCluster) -> None:
    cluster.nodes("n1", "n2", "n3", "n4")
    done = cluster.run("trial", "stop", "-l", "pool=batch")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        *(f"n{n}: no trial runs in the background now" for n in (1, 2, 3)),
        "n4: no agent runs here",
    ]


def test_what_nodes_say_reaches_no_terminal_as_it_is(cluster: FakeCluster) -> None:
    page = report(1, label=HOSTILE, ended=HOSTILE)
    page["arms"] = {"enforce": HOSTILE, "pause": 1}
    for finding in page["findings"]:
        finding["name"] = f"{HOSTILE}{finding['name']}"
    for node in ("n1", "n2", "n3"):
        cluster.answer(node, "--latest", page)
        cluster.answer(node, "--background", {"seed": HOSTILE, "pairs": [HOSTILE] * 999})
    for verb in ("start", "status", "report"):
        done = cluster.run("trial", verb, "-l", "pool=batch", "--timeout", "60")
        assert done.stdout
        assert all(each.isprintable() for each in (done.stdout + done.stderr).splitlines())
        assert max(map(len, done.stdout.splitlines())) < 4000


@pytest.mark.parametrize(
    "given",
    [
        ("start",),
        ("start", "-l", ""),
        ("start", "-l", "a\nb"),
        ("report", "-l", "a=b", "--for", "2h"),
        ("status", "-l", "a=b", "--interval", "0"),
        ("stop", "-l", "a=b", "n1"),
    ],
)
def test_wrong_use_begins_nothing(cluster: FakeCluster, given: tuple[str, ...]) -> None:
    done = cluster.run("trial", *given)
    assert (done.returncode, done.stdout, cluster.calls()) == (2, "", [])
    assert len(done.stderr.splitlines()) == 1


def test_a_pool_without_a_node(cluster: FakeCluster) -> None:
    cluster.nodes()
    done = cluster.run("trial", "start", "-l", "pool=none", "--context", "c")
    assert done.returncode == 2
    assert "no node has the labels 'pool=none'" in done.stderr
    assert cluster.calls()[0].startswith("--context=c get nodes ")


def test_its_options_are_those_of_the_agent() -> None:
    parser = argparse.ArgumentParser()
    trial.add_arguments(parser)
    known = {option for each in parser._actions for option in each.option_strings}
    assert {*plugin._TRIAL, "--against", "--background", "--latest", "--stop", "--label"} <= known
    assert plugin._VERBS.keys() == plugin._POOL.keys()
    assert plugin._MOST_LABEL == trial_background._MOST_LABEL
    assert trial_background.INTERRUPTED == "interrupted"
    assert str(trial_background.State.RUNNING) == "running"
