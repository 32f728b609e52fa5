# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of three classes on a real kubelet and containerd: their group at the first instruction."""

from collections.abc import Iterator
import json
from pathlib import Path
from random import Random
import time

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kube.node_programs import container
from tests.kube.standalone import BLIND, StandaloneNode, standalone_home, standalone_node
from tests.support.kube.pod_server import PodServer
from tests.support.kube.pod_server import pod as raw_pod
from tests.support.waiting import eventually
from tests.vm.guest.resctrl import groups, mounted

pytestmark = [pytest.mark.vm, pytest.mark.kube]

_PODS = 20
# The first thing that the container does: it prints its group in resctrl.
_FIRST = "cat /proc/self/cpu_resctrl_groups; exec sleep 1000000"
_RULES = """\
nri: {{enabled: on, socket: {socket}, answer_within: 1s}}
resctrl:
  monitor: false
  classes:
    gold: {{l3: [50%, 100%], annotation: true}}
    silver: {{l3: [0%, 50%], mb: 45%, koordinator: [LSR]}}
    bronze: {{l3: [0%, 30%]}}
"""
_PROFILE = """\
name: bronze
indicators: {runq_p99: {sweet_point: 1ms}}
resctrl_class: bronze
"""
_BY_CLASS = {
    "gold": {"annotations": {"rdt.resources.beta.kubernetes.io/pod": "gold"}},
    "silver": {"labels": {"koordinator.sh/qosClass": "LSR"}},
    "bronze": {"labels": {"sweetpoint.dev/profile": "bronze"}},
    # An unknown class: the pod starts, in the root group.
    "": {"annotations": {"rdt.resources.beta.kubernetes.io/pod": "lead"}},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PodServer]:
    with PodServer(tmp_path) as server:
        yield server


@pytest.fixture
def node(
    server: PodServer, cgroup_layout: CgroupLayout, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneNode]:
    with (
        standalone_home(tmp_path_factory.mktemp("node")) as home,
        standalone_node(home, "cgroupfs", cgroup_layout, server) as node,
    ):
        yield node


def start_pod(node: StandaloneNode, server: PodServer, name: str, wanted: str) -> None:
    """Have the API server list a pod of the class *wanted*, then kubelet start it."""
    main = container("main", {"requests": {"cpu": "10m"}}, _FIRST)
    raw = raw_pod(name, **_BY_CLASS[wanted])
    raw["status"]["qosClass"] = "Burstable"
    raw["spec"] |= {"containers": [main]}
    server.pods.append(raw)
    server.send_event("ADDED", raw)
    spec = {"hostNetwork": True, "terminationGracePeriodSeconds": 1, "containers": [main]}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": raw["metadata"], "spec": spec}
    folder = node.host.home / "var-lib/kubelet-static"
    (folder / f"{name}.json").write_text(json.dumps(manifest))


def seen_by(node: StandaloneNode, name: str) -> str:
    """Return the control group that the container of a pod printed; empty: nothing yet."""
    for file in (node.host.home / "var-log/pods").glob(f"shop_{name}_*/main/*.log"):
        for line in file.read_text().splitlines():
            if "res:" in line:
                return line.partition("res:")[2]
    return ""


@pytest.mark.soak
def test_every_task_is_in_its_group_at_its_first_instruction(
    node: StandaloneNode, server: PodServer
) -> None:
    random = Random(3)
    chosen = [random.choice(list(_BY_CLASS)) for _ in range(_PODS)]
    (node.host.home / "bronze.yaml").write_text(_PROFILE)
    with mounted():
        before = groups()
        node.squeeze(False)
        text = node.config.read_text().replace("[default.yaml]", "[default.yaml, bronze.yaml]")
        rules = _RULES.format(socket=node.host.file("/run/nri/nri.sock"))
        node.config.write_text(text + rules)
        with AgentRun(node, "--no-guardian", without=BLIND) as agent:
            eventually(
                "the plugin", lambda: not (agent.status().get("nri") or {"problem": 1})["problem"]
            )
            for number, wanted in enumerate(chosen):
                time.sleep(random.random())
                start_pod(node, server, f"p{number}", wanted)
            eventually("all pods", lambda: all(seen_by(node, f"p{n}") for n in range(_PODS)))
            seen = [seen_by(node, f"p{number}") for number in range(_PODS)]
            state = agent.status()["nri"]
            print(f"in time {state['in_time']}, late {state['late']}")
            assert seen == [f"sweetpoint-{name}" if name else "/" for name in chosen]
            assert agent.stop() == 0
        assert groups() == before
