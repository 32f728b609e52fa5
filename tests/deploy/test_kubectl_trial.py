# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``kubectl sweetpoint trial`` of a pool, with a kubectl that answers from files."""

import argparse
import json
from pathlib import Path
import re
import signal
import subprocess
import sys

import pytest

from controller.cli import trial, trial_background
from controller.host.trial_record import MOST_LABEL
from controller.trial.blocks import Arm
from deploy import kubectl_sweetpoint as plugin
from tests.deploy.fake_kubectl import HOSTILE, PLUGIN, FakeCluster
from tests.deploy.pool_reports import LABEL, report
from tests.support.waiting import DEADLINE_S, eventually

POOL = ("-l", "pool=batch", "--interval", "0.1")
FAST = ("-l", "pool=batch", "--interval", "0.01")
AWAY = OSError("Unable to connect to the server: EOF")
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


def stop_of(node: str) -> str:
    return f"exec -n ns agent-{node} -c agent -- /opt/sweetpoint/bin/sweetpoint trial --stop"


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
    stops = [each for each in cluster.calls() if " --stop" in each]
    assert stops == [f"{stop_of('n3')} --label={LABEL}"]
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


@pytest.mark.parametrize("first", [[AWAY], [AWAY] * 9])
def test_looks_without_an_answer_do_not_end_the_watch(
    cluster: FakeCluster, first: list[OSError]
) -> None:
    running(cluster, "n1")
    cluster.answers("pods", *first, (cluster.home / "pods").read_text())
    cluster.answers("agent-n1.--latest", RUNS, report(0, 0.1, 0.8))
    done = cluster.run("trial", "status", "--watch", *FAST)
    assert done.returncode == 0
    assert done.stderr.count("; asked again\n") == len(first)
    assert done.stdout.splitlines()[:2] == [
        "1 of 3 nodes run, 90 of 90 pairs",
        "0 of 3 nodes run, 90 of 90 pairs",
    ]


def test_nodes_that_are_silent_at_first_do_not_end_the_watch(cluster: FakeCluster) -> None:
    for number, node in enumerate(("n1", "n2", "n3")):
        cluster.answers(f"agent-{node}.--latest", SILENT, report(number, 0.1, 0.8))
    done = cluster.run("trial", "status", "--watch", *FAST)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 nodes, 90 pairs" in done.stdout


def test_start_looks_at_trials_whose_begin_had_no_answer(cluster: FakeCluster) -> None:
    for node in ("n1", "n2", "n3"):
        cluster.answers(f"agent-{node}.--background", SILENT)
    done = cluster.run("trial", "start", *FAST)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("n1: may have begun: error: i/o timeout")
    assert lines[3].endswith(" on 0 of 3 nodes")
    assert "3 nodes, 90 pairs" in lines[5]


def test_start_does_not_look_where_no_agent_began(cluster: FakeCluster) -> None:
    for node in ("n1", "n2", "n3"):
        cluster.answers(f"agent-{node}.--background", OSError("sweetpoint: the agent is paused"))
    done = cluster.run("trial", "start", *FAST)
    assert (done.returncode, words(cluster, "--latest")) == (1, [])
    assert "nobody watches" not in done.stdout


def test_a_watch_that_gives_up_says_why_and_what_it_saw(cluster: FakeCluster) -> None:
    running(cluster, "n1")
    cluster.answers("pods", (cluster.home / "pods").read_text(), AWAY)
    done = cluster.run("trial", "status", "--watch", *FAST)
    assert done.returncode == 1
    assert "3 nodes, 90 pairs" in done.stdout
    *before, last, end = done.stderr.splitlines()
    assert len(before) == 9 and all(each.endswith("; asked again") for each in before)
    assert "Unable to connect" in last and not last.endswith("; asked again")
    assert "the watch gives up, and the trial may still run on n1; " in end


# It is the last kubectl that can be started.
LAST = """\
#!/bin/sh
cd "${0%/*}"
while read -r line || [ "$line" ]; do echo "$line"; done <"$2"
[ "$2" != pods ] || /bin/chmod a-x kubectl
"""


def test_a_kubectl_that_cannot_be_started_does_not_end_the_watch(cluster: FakeCluster) -> None:
    (cluster.home / "kubectl").write_text(LAST)
    done = subprocess.run(
        [sys.executable, PLUGIN, "trial", "status", "--watch", *FAST],
        env={"PATH": str(cluster.home)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "n1: left out: kubectl cannot be started" in done.stdout
    assert "the watch gives up, and the trial may still run on n1, n2, n3; " in done.stderr


def hurt_and_running(cluster: FakeCluster, *answers: object) -> None:
    """Have two nodes be hurt and the third one answer each look with one of *answers*."""
    hurt(cluster, "n1", "n2")
    running(cluster, "n3")
    cluster.answers("agent-n3.--latest", *answers)


def test_the_trials_of_hurt_pools_are_ended_until_they_end(cluster: FakeCluster) -> None:
    ended = report(3, ended=trial_background.INTERRUPTED)
    hurt_and_running(cluster, RUNS, RUNS, SILENT, RUNS, ended)
    cluster.answers("agent-n3.--stop", SILENT, STOPPED, SILENT, STOPPED)
    done = cluster.run("trial", "status", "--watch", *FAST)
    assert words(cluster, "--stop") == [f"trial --stop --label={LABEL}"] * 4
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("2 nodes were hurt: the pool's trial ends\n") == 1
    assert "  no verdict, because 2 nodes were hurt" in done.stdout


def test_a_stop_that_fails_at_the_api_server_is_tried_again(cluster: FakeCluster) -> None:
    hurt_and_running(cluster, RUNS, RUNS, report(3, ended=trial_background.INTERRUPTED))
    pods = (cluster.home / "pods").read_text()
    cluster.answers("pods", pods, AWAY, pods)
    done = cluster.run("trial", "status", "--watch", *FAST)
    assert words(cluster, "--stop") == [f"trial --stop --label={LABEL}"]
    assert "Unable to connect" in done.stderr
    assert "  no verdict, because 2 nodes were hurt" in done.stdout


def test_nodes_that_never_end_are_named(cluster: FakeCluster) -> None:
    hurt_and_running(cluster, RUNS)
    done = cluster.run("trial", "status", "--watch", *FAST)
    assert done.returncode == 1
    assert len(words(cluster, "--stop")) == plugin._MOST_STOPS
    assert "2 nodes were hurt, and the trial may still run on n3; " in done.stderr


def test_harm_of_one_trial_does_not_end_another_one(cluster: FakeCluster) -> None:
    hurt(cluster, "n1", "n2")
    other = "2026-11-01T00:00:00Z"
    nodes = ("n4", "n5")
    cluster.nodes("n1", "n2", "n3", *nodes)
    for node in nodes:
        cluster.agent(node)
        ended = report(4, label=other)
        cluster.answer(node, "--latest", {**ended, "trial": {**ended["trial"], "state": "running"}})
    status = cluster.run("trial", "status", "-l", "pool=batch")
    assert "were hurt" not in status.stdout
    for node in nodes:
        runs = json.loads((cluster.home / f"agent-{node}.--latest").read_text())
        cluster.answers(f"agent-{node}.--latest", runs, report(4, label=other))
    done = cluster.run("trial", "status", "--watch", *FAST)
    assert words(cluster, "--stop") == []
    assert done.stdout.splitlines()[:2] == [
        "2 of 5 nodes run, 60 of 60 pairs",
        "0 of 5 nodes run, 60 of 60 pairs",
    ]
    assert f"trial {other} of " in done.stdout


def test_start_does_not_wait_for_another_trial_and_does_not_end_it(cluster: FakeCluster) -> None:
    hurt(cluster, "n1", "n2")
    other = report(4, label="2026-11-01T00:00:00Z", state=trial_background.State.RUNNING)
    cluster.answer("n3", "--latest", other)
    cluster.answers("agent-n3.--background", OSError("sweetpoint: a trial runs"))
    done = cluster.run("trial", "start", *FAST)
    assert (done.returncode, words(cluster, "--stop")) == (1, [])
    assert len(words(cluster, "--latest")) == 3
    assert "  no verdict, because 2 nodes were hurt" in done.stdout


@pytest.mark.parametrize("given", [("status", "--watch"), ("start",)])
def test_a_watch_prints_nothing_but_json_if_asked(
    cluster: FakeCluster, given: tuple[str, ...]
) -> None:
    hurt_and_running(cluster, RUNS, report(3, ended=trial_background.INTERRUPTED))
    done = cluster.run("trial", *given, *FAST, "-o", "json")
    assert json.loads(done.stdout)["hurt"] == ["n1", "n2"]
    assert "2 nodes were hurt: the pool's trial ends\n" in done.stderr
    assert "n3: no trial runs in the background now\n" in done.stderr


def test_start_without_a_watch_has_json(cluster: FakeCluster) -> None:
    cluster.answers("agent-n2.--background", OSError("sweetpoint: the agent is paused"))
    cluster.answers("agent-n3.--background", SILENT)
    done = cluster.run("trial", "start", "-l", "pool=batch", "--no-watch", "-o", "json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and "nobody watches" in done.stderr
    assert [each["begun"] for each in found["nodes"]] == [True, False, None]


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
        ("stop", "-l", "a=b", "-o", "json"),
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
    assert plugin._MOST_LABEL == MOST_LABEL
    assert trial_background.INTERRUPTED == "interrupted"
    assert str(trial_background.State.RUNNING) == "running"
