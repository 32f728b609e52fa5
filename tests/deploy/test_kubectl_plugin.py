# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``kubectl sweetpoint`` as a program, with a kubectl that answers from files."""

import ast
import json
import os
from pathlib import Path
import signal
import subprocess
from typing import Any

import pytest

from controller.host.names import printable
from deploy import kubectl_sweetpoint as plugin
from tests.support.waiting import DEADLINE_S, eventually

PLUGIN = Path(plugin.__file__)
HOSTILE = "x\x1b[2J\n\u202e\ud800"
# Answers with the file that is named after what it is asked for, and writes down what that was.
KUBECTL = """\
#!/bin/sh
cd "${0%/*}"
printf '%s\\n' "$*" >>calls
while [ "${1#--}" != "$1" ]; do shift; done
case "$1" in
get) name="$2" ;;
annotate) name=annotate ;;
exec) name="$4" ;;
esac
[ ! -e "$name.hang" ] || exec sleep 600
[ ! -e "$name.err" ] || { cat "$name.err" >&2; exit 1; }
exec cat "$name"
"""


class Cluster:
    """The files with which the fake kubectl answers."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._pods: list[dict[str, Any]] = []
        (home / "calls").touch()
        (home / "annotate").touch()
        (home / "kubectl").write_text(KUBECTL)
        (home / "kubectl").chmod(0o755)
        self.nodes("n1")

    def nodes(self, *lines: str) -> None:
        """Set what the template prints about the nodes."""
        (self.home / "nodes").write_text("".join(f"{line}\n" for line in lines))

    def agent(self, node: str, answer: object = None, ready: bool = True, **names: str) -> None:
        """Add an agent with *answer*, a text or a page."""
        pod = names.get("pod", f"agent-{node}")
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        self._pods.append(
            {
                "metadata": {
                    "name": pod,
                    "namespace": names.get("namespace", "ns"),
                    "labels": {"app.kubernetes.io/version": names.get("version", "1.2")},
                },
                "spec": {"nodeName": node},
                "status": {"phase": "Running", "conditions": [condition]},
            }
        )
        (self.home / "pods").write_text(json.dumps({"items": self._pods}))
        text = answer if isinstance(answer, str) else json.dumps(answer or page())
        if "/" not in pod:
            (self.home / pod).write_text(text)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.home}:{os.environ['PATH']}", "TERM": "xterm"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the plugin."""
        return subprocess.run(
            [PLUGIN, *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def calls(self) -> list[str]:
        """Return what kubectl was asked for."""
        return (self.home / "calls").read_text().splitlines()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "pods").write_text('{"items": []}')
    return Cluster(tmp_path)


def page(ratio: float = 0.5, **fields: object) -> dict[str, object]:
    """Return an answer of ``sweetpoint status --json``."""
    worst = {"service": "web", "indicator": "runq_p99", "value": "1ms", "sweet_point": "2ms"}
    return {
        "source": "agent",
        "mode": "enforce",
        "best_effort": 2,
        "limited": [{"name": "job"}],
        "knobs": [{"knob": "cpu.quota"}],
        "paused": [],
        "problems": [],
        "worst": {**worst, "ratio": ratio},
        **fields,
    }


def rows(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of the table below its head, with single blanks."""
    head, *lines = done.stdout.splitlines()
    assert head.split() == [
        "NODE",
        "AGENT",
        "VERSION",
        "MODE",
        "LIMITED",
        "WORST",
        "SERVICE",
        "NOTES",
    ]
    return [" ".join(line.split()) for line in lines]


def test_status_has_a_line_for_each_node_the_worst_first(cluster: Cluster) -> None:
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


def test_status_is_done_if_every_agent_answers(cluster: Cluster) -> None:
    cluster.agent("n1")
    done = cluster.run("status", "--context", "c", "--kubeconfig=/k", "-n", "ns")
    assert (done.returncode, len(rows(done))) == (0, 1)
    calls = cluster.calls()
    assert all(each.startswith("--context=c --kubeconfig=/k ") for each in calls)
    assert [each for each in calls if " get pods -n=ns " in each]
    ask = "exec -n ns agent-n1 -c agent -- /opt/sweetpoint/bin/sweetpoint status --json"
    assert calls[-1].endswith(ask)


def test_status_as_json_has_what_the_agent_says(cluster: Cluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.agent("n1", page(news=1))
    one, other = json.loads(cluster.run("status", "-o", "json").stdout)
    assert (one["node"], one["error"], one["status"]) == ("n2", "no agent runs here", None)
    assert other["status"] == {key: page(news=1)[key] for key in page(news=1) if key != "knobs"}
    assert (other["pod"], other["ready"], other["version"]) == ("agent-n1", True, "1.2")


def test_status_of_named_nodes(cluster: Cluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.agent("n1")
    cluster.agent("n2")
    assert [each.split()[0] for each in rows(cluster.run("status", "n2"))] == ["n2"]
    unknown = cluster.run("status", "n3")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "no node 'n3'; see 'kubectl get nodes'" in unknown.stderr


def test_of_two_agents_of_a_node_the_ready_one_is_asked(cluster: Cluster) -> None:
    cluster.agent("n1", "old", ready=False, pod="old")
    cluster.agent("n1", pod="new")
    cluster.agent("n1", "older", ready=False, pod="older")
    assert cluster.run("status").returncode == 0


def test_an_agent_that_says_less_is_shown(cluster: Cluster) -> None:
    """An older one, or one of a service without a value."""
    cluster.agent("n1", {"source": "agent", "mode": "observe", "worst": None})
    assert rows(cluster.run("status")) == ["n1 ready 1.2 observe 0 - -"]


@pytest.mark.parametrize("answer", ["", "[]", "{", "[" * 100_000, '{"source": 1}', "null"])
def test_an_answer_of_another_kind_is_one_line(cluster: Cluster, answer: str) -> None:
    cluster.agent("n1", answer)
    done = cluster.run("status")
    assert rows(done) == ["n1 ready 1.2 - - - its answer is none of an agent"]
    assert (done.returncode, done.stderr) == (1, "")


def test_an_agent_without_pages_says_why(cluster: Cluster) -> None:
    cluster.agent("n1", {"source": "journal", "notes": ["the agent was not asked: http is off"]})
    assert rows(cluster.run("status"))[0].endswith("- the agent was not asked: http is off")


def test_hostile_text_stays_on_its_line(cluster: Cluster) -> None:
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


def test_names_that_would_be_options_are_no_pods(cluster: Cluster) -> None:
    cluster.agent("n1", pod="--kubeconfig=/etc/passwd")
    cluster.agent("n1", namespace="-x")
    assert rows(cluster.run("status", "n1")) == ["n1 - - - - - no agent runs here"]
    for node in ("-x", "n1,status.phase=Pending", "N1", "a" * 254):
        assert cluster.run("doctor", "--", node).returncode == 2
    assert not [each for each in cluster.calls() if each.startswith("exec")]


def test_numbers_of_a_hostile_page(cluster: Cluster) -> None:
    for ratio in (float("nan"), float("inf"), -1, "1", None, 10**400, True):
        cluster.agent("n1", page(ratio=ratio, best_effort="9" * 10**5))  # type: ignore[arg-type]
        done = cluster.run("status", "-o", "json")
        json.loads(done.stdout, parse_constant=pytest.fail)
        (line,) = rows(cluster.run("status"))
        assert len(line) < 200


def test_a_node_that_hangs_is_one_line(cluster: Cluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.agent("n1")
    cluster.agent("n2")
    (cluster.home / "agent-n1.hang").touch()
    first, second = rows(cluster.run("status", "--timeout", "0.5"))
    assert first == "n1 ready 1.2 - - - no answer within 0.5 s; see --timeout"
    assert second.startswith("n2 ready 1.2 enforce")


def test_an_answer_without_end_is_cut_off(cluster: Cluster) -> None:
    cluster.agent("n1")
    (cluster.home / "agent-n1").unlink()
    (cluster.home / "agent-n1").symlink_to("/dev/zero")
    (line,) = rows(cluster.run("status", "--timeout", str(DEADLINE_S)))
    assert line.endswith("the answer has more than 8 MiB")


def test_without_agents_it_says_what_to_look_for(cluster: Cluster) -> None:
    done = cluster.run("status")
    assert done.returncode == 1
    assert "no pod has the label app.kubernetes.io/name=sweetpoint" in done.stderr


FORBIDDEN = (
    "E1127 memcache.go:265] noise\n"
    'Error from server (Forbidden): pods is forbidden: User "eve" cannot list it\n'
)


def test_without_permission_the_error_of_kubectl_is_shown_and_what_to_do(cluster: Cluster) -> None:
    (cluster.home / "pods.err").write_text(FORBIDDEN)
    done = cluster.run("status")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("kubectl sweetpoint: kubectl get pods: Error from server (Forbidden)")
    assert 'User "eve"' in line and "SECURITY.md" in line


def test_without_permission_for_nodes_the_agents_are_shown(cluster: Cluster) -> None:
    cluster.agent("n1")
    (cluster.home / "nodes.err").write_text(FORBIDDEN)
    done = cluster.run("status")
    assert (done.returncode, len(rows(done))) == (0, 1)
    assert "nodes without an agent are not listed" in done.stderr


def test_without_permission_for_exec_each_node_says_so(cluster: Cluster) -> None:
    cluster.agent("n1")
    (cluster.home / "agent-n1.err").write_text(FORBIDDEN)
    (line,) = rows(cluster.run("status"))
    assert "Forbidden" in line and "SECURITY.md" in line


def test_without_kubectl(cluster: Cluster) -> None:
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


def test_pause_and_resume_annotate_the_node(cluster: Cluster) -> None:
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
def test_wrong_use_is_one_line(cluster: Cluster, words: tuple[str, ...]) -> None:
    done = cluster.run(*words)
    assert (done.returncode, done.stdout, cluster.calls()) == (2, "", [])
    (line,) = done.stderr.splitlines()
    assert line.isprintable()


@pytest.mark.parametrize("command", ["top", "explain", "doctor", "trial"])
def test_other_commands_run_those_of_the_agent(cluster: Cluster, command: str) -> None:
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


def test_the_errors_of_the_command_in_the_pod_are_shown(cluster: Cluster) -> None:
    cluster.agent("n1")
    (cluster.home / "agent-n1.err").write_text("sweetpoint: \x1b[2J no history\n")
    done = cluster.run("explain", "n1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sweetpoint: \\x1b[2J no history\n"


def test_an_agent_that_is_killed_meanwhile_says_so(cluster: Cluster) -> None:
    cluster.agent("n1")
    error = "command terminated with exit code 137\n"  # as kubectl exec has it, with nothing before
    (cluster.home / "agent-n1.err").write_text(error)
    (line,) = rows(cluster.run("status"))
    assert line.endswith("exit code 137; killed: does the agent's pod end, or is its memory short?")


def test_a_node_without_an_agent(cluster: Cluster) -> None:
    done = cluster.run("top", "n7")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no agent runs on node n7" in done.stderr
    assert "kubectl sweetpoint status" in done.stderr


@pytest.mark.parametrize("command", [["status"], ["top", "n1"]])
def test_an_interrupt_ends_it_and_each_kubectl(cluster: Cluster, command: list[str]) -> None:
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
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def asked() -> list[int]:
        tasks = children.parents[1].glob("*/children")
        pids = [int(pid) for task in tasks for pid in task.read_text().split()]
        return [pid for pid in pids if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    (kubectl,) = eventually("a kubectl that waits", asked)
    process.send_signal(signal.SIGINT)  # to it alone, as from another program
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (130, "", "")
    assert not Path(f"/proc/{kubectl}").exists()


def test_a_reader_that_has_seen_enough(cluster: Cluster) -> None:
    cluster.agent("n1")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [PLUGIN, "status"], env=cluster.environment(), stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_help_names_each_command(cluster: Cluster) -> None:
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


def test_its_text_is_made_printable_as_by_the_agent() -> None:
    for text in (HOSTILE, "é", "a'b\\", "\t\x7f"):
        assert plugin.printable(text) == printable(text)
