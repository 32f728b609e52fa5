# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``kubectl sweetpoint status``, with a kubectl that answers from files."""

import json
import os
from pathlib import Path
import subprocess

import pytest

from tests.deploy.fake_kubectl import FORBIDDEN, HOSTILE, PLUGIN, FakeCluster, page, rows
from tests.support.waiting import DEADLINE_S


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path)


def test_status_has_a_line_for_each_node_the_worst_first(cluster: FakeCluster) -> None:
    cluster.nodes("n1", "n2", "n3 kernel+upgrade", "n4", "n5")
    cluster.agent("n1", page(0.5))
    cluster.agent("n2", page(2.0))
    cluster.agent("n3", page(problems=["configuration: wrong"], paused=["paused: everything"]))
    cluster.agent("n5", ready=False)
    done = cluster.run("status")
    assert rows(done) == [
        "n4 - - - - - no agent runs here",
        "n5 not ready 1.2 enforce 1 of 2 web runq_p99 1ms of 2ms (0.50 times) -",
        "n3 ready 1.2 enforce 1 of 2 web runq_p99 1ms of 2ms (0.50 times) "
        "paused: everything (kernel upgrade); configuration: wrong",
        "n2 ready 1.2 enforce 1 of 2 web runq_p99 1ms of 2ms (2.00 times) -",
        "n1 ready 1.2 enforce 1 of 2 web runq_p99 1ms of 2ms (0.50 times) -",
    ]
    assert (done.returncode, done.stderr) == (1, "")


def test_status_is_done_if_every_agent_answers(cluster: FakeCluster) -> None:
    cluster.agent("n1")
    done = cluster.run("status", "--context", "c", "--kubeconfig=/k", "-n", "ns")
    assert (done.returncode, len(rows(done))) == (0, 1)
    calls = cluster.calls()
    assert all(each.startswith("--context=c --kubeconfig=/k ") for each in calls)
    assert [each for each in calls if " get pods -n=ns " in each]
    ask = "exec -n ns agent-n1 -c agent -- /opt/sweetpoint/bin/sweetpoint status --json"
    assert calls[-1].endswith(ask)


def test_status_as_json_has_what_the_agent_says(cluster: FakeCluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.agent("n1", page(news=1))
    one, other = json.loads(cluster.run("status", "-o", "json").stdout)
    assert (one["node"], one["error"], one["status"]) == ("n2", "no agent runs here", None)
    assert other["status"] == {key: page(news=1)[key] for key in page(news=1) if key != "knobs"}
    assert (other["pod"], other["ready"], other["version"]) == ("agent-n1", True, "1.2")


def test_status_of_named_nodes(cluster: FakeCluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.agent("n1")
    cluster.agent("n2")
    assert [each.split()[0] for each in rows(cluster.run("status", "n2"))] == ["n2"]
    unknown = cluster.run("status", "n3")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no node 'n3'; see 'kubectl get nodes'" in unknown.stderr


def test_of_two_agents_of_a_node_the_ready_one_is_asked(cluster: FakeCluster) -> None:
    cluster.agent("n1", "old", ready=False, pod="old")
    cluster.agent("n1", pod="new")
    cluster.agent("n1", "older", ready=False, pod="older")
    assert cluster.run("status").returncode == 0


def test_an_agent_that_says_less_is_shown(cluster: FakeCluster) -> None:
    """An older one, or one of a service without a value."""
    cluster.agent("n1", {"source": "agent", "mode": "observe", "worst": None})
    assert rows(cluster.run("status")) == ["n1 ready 1.2 observe 0 - -"]


@pytest.mark.parametrize("answer", ["", "[]", "{", "[" * 100_000, '{"source": 1}', "null"])
def test_an_answer_of_another_kind_is_one_line(cluster: FakeCluster, answer: str) -> None:
    cluster.agent("n1", answer)
    done = cluster.run("status")
    assert rows(done) == ["n1 ready 1.2 - - - its answer is none of an agent"]
    assert (done.returncode, done.stderr) == (1, "")


def test_an_agent_without_pages_says_why(cluster: FakeCluster) -> None:
    cluster.agent("n1", {"source": "journal", "notes": ["the agent was not asked: http is off"]})
    assert rows(cluster.run("status"))[0].endswith("- the agent was not asked: http is off")


def test_hostile_text_stays_on_its_line(cluster: FakeCluster) -> None:
    cluster.nodes("n1 a%0Ab%1B%5B2J", "n2")
    worst = dict.fromkeys(("service", "indicator", "value", "sweet_point"), HOSTILE)
    texts = [HOSTILE, 7, None]
    hostile = page(mode=HOSTILE, paused=texts, problems=texts, worst={**worst, "ratio": "1"})
    cluster.agent("n1", hostile, version=HOSTILE)
    (cluster.home / "agent-n2.err").write_text("a\nerror: \x1b[31mno\n")
    cluster.agent("n2", best_effort=HOSTILE)
    first, second = cluster.run("status").stdout.splitlines()[1:]
    assert first.isprintable() and second.isprintable()
    assert first.endswith(r"error: \x1b[31mno")
    assert r"x\x1b[2J\n\u202e\ud800 (a\nb\x1b[2J)" in second


def test_numbers_of_a_hostile_page(cluster: FakeCluster) -> None:
    for ratio in (float("nan"), float("inf"), -1, "1", None, 10**400, True):
        cluster.agent("n1", page(ratio=ratio, best_effort="9" * 10**5))  # type: ignore[arg-type]
        done = cluster.run("status", "-o", "json")
        json.loads(done.stdout, parse_constant=pytest.fail)
        (line,) = rows(cluster.run("status"))
        assert len(line) < 200


def test_a_node_that_hangs_is_one_line(cluster: FakeCluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.agent("n1")
    (cluster.home / "agent-n1.hang").touch()
    other, hanging = rows(cluster.run("status", "--timeout", "0.5"))
    assert hanging == "n1 ready 1.2 - - - no answer within 0.5 s; see --timeout"
    assert other == "n2 - - - - - no agent runs here"


def test_an_answer_without_end_is_cut_off(cluster: FakeCluster) -> None:
    cluster.agent("n1")
    (cluster.home / "agent-n1").unlink()
    (cluster.home / "agent-n1").symlink_to("/dev/zero")
    (line,) = rows(cluster.run("status", "--timeout", str(DEADLINE_S)))
    assert line.endswith("the answer has more than 8 MiB")


def test_without_agents_it_says_what_to_look_for(cluster: FakeCluster) -> None:
    done = cluster.run("status")
    assert done.returncode == 1
    assert "no pod has the label app.kubernetes.io/name=sweetpoint" in done.stderr


def test_without_permission_the_error_of_kubectl_says_what_to_do(
    cluster: FakeCluster,
) -> None:
    (cluster.home / "pods.err").write_text(FORBIDDEN)
    done = cluster.run("status")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kubectl sweetpoint: kubectl get pods: Error from server (Forbidden)")
    assert 'User "eve"' in line and "SECURITY.md" in line


def test_without_permission_for_nodes_the_agents_are_shown(cluster: FakeCluster) -> None:
    cluster.agent("n1")
    (cluster.home / "nodes.err").write_text(FORBIDDEN)
    done = cluster.run("status")
    assert (done.returncode, len(rows(done))) == (0, 1)
    assert "nodes without an agent are not listed" in done.stderr


def test_without_permission_for_exec_each_node_says_so(cluster: FakeCluster) -> None:
    cluster.agent("n1")
    (cluster.home / "agent-n1.err").write_text(FORBIDDEN)
    (line,) = rows(cluster.run("status"))
    assert "Forbidden" in line and "SECURITY.md" in line


def test_an_agent_that_is_killed_meanwhile_says_so(cluster: FakeCluster) -> None:
    cluster.agent("n1")
    error = "command terminated with exit code 137\n"  # as kubectl exec has it, with nothing before
    (cluster.home / "agent-n1.err").write_text(error)
    (line,) = rows(cluster.run("status"))
    assert line.endswith("exit code 137; killed: does the agent's pod end, or is its memory short?")


def test_on_a_terminal_it_shows_how_many_have_answered(cluster: FakeCluster) -> None:
    cluster.agent("n1")
    cluster.agent("n2")
    terminal, end = os.openpty()
    done = subprocess.run(
        [PLUGIN, "status"], env=cluster.environment(), stdout=subprocess.PIPE, stderr=end, text=True
    )
    os.close(end)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert (done.returncode, len(rows(done))) == (0, 2)
    assert shown == "\r1 of 2 nodes\r2 of 2 nodes\r\x1b[K"
