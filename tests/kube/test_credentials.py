# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Credentials of a pod at a real API server: found, renewed, revoked."""

from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
import subprocess
import sys
import time

import pytest

from tests.kernel.agent import AgentRun
from tests.kube.cable import Cable
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet
from tests.kube.service_account import ServiceAccountVolume
from tests.kube.site import NodeSite
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
UNKNOWN = "401 Unauthorized: the server does not accept the token"
# Sends a request for every input line, and prints the result.
ASKS = """
import sys
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError, ApiUnreachable
from tests.support.kube.limits import PATIENT
api = Api(limits=PATIENT)
for line in sys.stdin:
    try:
        print("pods:", len(api.get(line.strip())["items"]), flush=True)
    except (ApiError, ApiUnreachable) as error:
        print(error, flush=True)
"""


@pytest.fixture
def volume(
    cluster: Cluster,
    namespace: str,
    cable: Cable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> ServiceAccountVolume:
    """The credentials of a pod, and its environment."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cable.port))
    cluster.grant(namespace, "default", RULES)
    return ServiceAccountVolume(tmp_path, cluster.plane.ca_file, "not.a.token")


def other_authority(home: Path) -> str:
    """Return the certificate of an authority that did not sign the server's certificate."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=other"
    subprocess.run(
        [*command.split(), "-keyout", "other.key", "-out", "other.crt"],
        cwd=home,
        check=True,
        capture_output=True,
    )
    return (home / "other.crt").read_text()


@contextlib.contextmanager
def asking(volume: ServiceAccountVolume, path: str) -> Iterator[Callable[[], str]]:
    """Yield a function that requests *path* in a pod with the agent's client."""
    shell = ["unshare", "-m", "sh", "-ec", f'{volume.mount}; exec "$@"', "-"]
    child = subprocess.Popen(
        [*shell, sys.executable, "-c", ASKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    questions, answers = child.stdin, child.stdout
    assert questions is not None and answers is not None

    def ask() -> str:
        questions.write(f"{path}\n")
        questions.flush()
        return answers.readline().strip()

    try:
        yield ask
    finally:
        child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 0


def test_token_and_authority_are_read_from_the_pod_s_volume(
    cluster: Cluster, namespace: str, volume: ServiceAccountVolume, tmp_path: Path
) -> None:
    authority = cluster.plane.ca_file.read_text()
    with asking(volume, "/api/v1/pods?fieldSelector=spec.nodeName%3Dnobody") as ask:
        said = ask()
        assert said.startswith(UNKNOWN)
        assert "not.a.token" not in said
        volume.write(token=cluster.token(namespace, "default") + "\n")
        assert ask() == "pods: 0"
        volume.write(authority=other_authority(tmp_path))
        said = ask()
        assert said.startswith("TLS: ") and "certificate authority" in said
        volume.write(authority="not a certificate")
        assert ask().startswith("TLS: ")
        volume.write(authority=authority)
        assert ask() == "pods: 0"


@pytest.mark.soak
def test_a_token_that_expires_or_is_revoked_while_the_agent_runs(
    cluster: Cluster,
    namespace: str,
    kubelet: Kubelet,
    volume: ServiceAccountVolume,
    cable: Cable,
    tmp_path: Path,
) -> None:
    first, second, third = (
        cluster.make_pod(namespace, f"agent-{number}", node="elsewhere") for number in range(3)
    )
    volume.write(token=cluster.token(namespace, "default", first))
    site = NodeSite(cluster, kubelet, tmp_path, cluster.client(namespace, "default"))
    site.config.write_text(
        "\n".join(line for line in site.config.read_text().splitlines() if "kubeconfig" not in line)
    )

    def start(name: str, qos: str = "BestEffort") -> None:
        pod = site.kubelet.start(cluster.make_pod(namespace, name, node=site.kubelet.node, qos=qos))
        eventually(f"the pod {name}", lambda: site.workload(agent, pod))

    def status() -> Json:
        return dict(agent.status()["cluster"])

    def end(pod: Json) -> None:
        """Revoke the tokens that are bound to *pod*, and wait until they are invalid."""
        name = pod["metadata"]["name"]
        cluster.admin.delete(f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
        time.sleep(12)  # the server caches authentications for ten seconds
        cable.cut()

    with AgentRun(site, without=volume.mount) as agent:
        agent.ready()
        start("web", "Burstable")
        start("batch-0")
        agent.enforcing()
        # Renewed in time: at most one request is refused.
        volume.write(token=cluster.token(namespace, "default", second))
        end(first)
        start("batch-1")
        assert status()["failed_requests"].get("401", 0) <= 1
        # Revoked: it is logged once, requests become rarer, and nothing changes.
        end(second)
        eventually("the problem", lambda: status()["problem"].startswith(UNKNOWN))
        refused, knobs = status()["failed_requests"]["401"], site.knobs()
        time.sleep(30)
        assert 1 <= status()["failed_requests"]["401"] - refused <= 15
        assert site.knobs() == knobs and site.protected()
        volume.write(token=cluster.token(namespace, "default", third))
        start("batch-2")
        assert status()["problem"] == ""
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    # Once for each of them.
    assert agent.output.count(f"API server, pods: {UNKNOWN}") <= 2
