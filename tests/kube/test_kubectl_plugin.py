# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``kubectl sweetpoint`` with the real kubectl, against a real API server and on a real node."""

from collections.abc import Mapping
import json
import os
from pathlib import Path
import subprocess
from typing import Any

import pytest

from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet
from tests.kube.node_programs import NODE
from tests.kube.release import NAMESPACE, Release
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

PLUGIN = Path(__file__).parents[2] / "deploy" / "kubectl_sweetpoint.py"
PAUSE, REASON = "sweetpoint.dev/pause", "sweetpoint.dev/pause-reason"


def run(config: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the plugin as kubectl does, which finds it in PATH by its name."""
    program = home / "kubectl-sweetpoint"
    if not program.exists():
        program.symlink_to(PLUGIN)
    return subprocess.run(
        ["kubectl", "sweetpoint", words[0], f"--kubeconfig={config}", *words[1:]],
        env={**os.environ, "PATH": f"{home}:{os.environ['PATH']}", "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def annotations(cluster: Cluster, node: str) -> Mapping[str, str]:
    metadata = cluster.admin.get(f"/api/v1/nodes/{node}")["metadata"]
    return dict(metadata.get("annotations", {}))


def test_a_pause_and_its_reason_are_annotations_of_the_node(
    cluster: Cluster, kubelet: Kubelet, tmp_path: Path
) -> None:
    config, node = tmp_path / "admin", kubelet.node
    cluster.kubeconfig(config, cluster.admin)
    reason = "kernel upgrade: 50 % & more"
    done = run(config, tmp_path, "pause", node, "--for", "2h", "--reason", reason)
    assert done.returncode == 0, done.stderr
    found = annotations(cluster, node)
    assert found[PAUSE].endswith("Z") and found[REASON] == reason
    shown = run(config, tmp_path, "status", "-o", "json", node)
    (row,) = json.loads(shown.stdout)
    assert (row["node"], row["error"], row["pause_reason"]) == (node, "no agent runs here", reason)
    assert shown.returncode == 1
    again = run(config, tmp_path, "pause", node)
    assert again.returncode == 0, again.stderr
    assert REASON not in annotations(cluster, node)
    for _ in range(2):  # also if nothing is paused
        done = run(config, tmp_path, "resume", node)
        assert done.returncode == 0, done.stderr
        assert not {PAUSE, REASON} & annotations(cluster, node).keys()


def test_what_the_server_refuses_is_shown_with_what_to_do(
    cluster: Cluster, kubelet: Kubelet, namespace: str, tmp_path: Path
) -> None:
    config, admin = tmp_path / "nobody", tmp_path / "admin"
    cluster.kubeconfig(admin, cluster.admin)
    cluster.kubeconfig(config, cluster.client(namespace, "default"))
    for words in (("status",), ("doctor", kubelet.node), ("pause", kubelet.node)):
        done = run(config, tmp_path, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "forbidden" in done.stderr and "SECURITY.md" in done.stderr
    missing = run(admin, tmp_path, "pause", "no-such-node")
    assert missing.returncode == 1
    assert 'nodes "no-such-node" not found' in missing.stderr


def test_an_agent_is_shown_paused_and_resumed(release: Release, tmp_path: Path) -> None:
    config = release.node.admin_kubeconfig

    def ask(*words: str) -> str:
        def answer() -> str | None:
            done = run(config, tmp_path, *words)
            return done.stdout if done.returncode == 0 else None

        return eventually(" ".join(words), answer)

    def row() -> dict[str, Any] | None:
        """Return the row of the node, if its agent answers: one that stands does not."""
        done = run(config, tmp_path, "status", "-n", NAMESPACE, "-o", "json")
        (found,) = json.loads(done.stdout)
        return found if done.returncode == 0 else None

    def paused() -> list[str] | None:
        found = row()
        return None if found is None else list(found["status"]["paused"])

    found = eventually("an answer", row)
    assert (found["node"], found["ready"], found["status"]["mode"]) == (NODE, True, "enforce")
    assert found["version"] and found["status"]["best_effort"]
    ask("pause", NODE, "--for", "1h", "--reason", "kernel upgrade")
    eventually("the pause", lambda: paused() == ["paused: everything"])
    assert "paused: everything (kernel upgrade)" in ask("status")
    ask("resume", NODE)
    eventually("its end", lambda: paused() == [])
    check_a_trial_in_the_background(config, tmp_path)
    assert "cgroup cpu controller" in ask("doctor", NODE)
    assert eventually("a page", lambda: run(config, tmp_path, "top", NODE, "--once").stdout)


def check_a_trial_in_the_background(config: Path, home: Path) -> None:
    """Check that a trial goes on in the pod without the kubectl that began it."""
    pool = ("--selector", f"kubernetes.io/hostname={NODE}", "--timeout", "100")
    begun = run(config, home, "trial", "start", *pool, "--no-watch", "--for", "6h")
    assert begun.returncode == 0, begun.stdout + begun.stderr
    assert "on 1 of 1 nodes" in begun.stdout

    def answer() -> dict[str, Any] | None:
        done = run(config, home, "trial", "status", *pool, "-o", "json")
        (found,) = json.loads(done.stdout)["nodes"]
        return found if done.returncode == 0 else None

    assert eventually("its trial", answer)["state"] == "running"
    stopped = run(config, home, "trial", "stop", *pool)
    assert stopped.returncode == 0, stopped.stdout
    found = eventually("its end", answer)
    assert (found["state"], found["ended"]) == ("ended", "interrupted")
