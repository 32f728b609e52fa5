# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How long new best-effort containers run before the agent's first value, told of them and not.

``SWEETPOINT_GAP_PODS`` is how many pods start with each agent, 50 by default. They start at random
moments next to a service that suffers; the agents take turns.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
import os
from pathlib import Path
import random
import statistics
import subprocess
import time
from typing import NamedTuple

import pytest

from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.images import save_files
from tests.kube.limits import squeezed
from tests.kube.node_agent import BATCH, HOG, SERVICE, Agent
from tests.kube.real_node import RealNode

pytestmark = [pytest.mark.bench, pytest.mark.kernel, pytest.mark.kube]

PODS = int(os.environ.get("SWEETPOINT_GAP_PODS", "50"))
AT_ONCE, MEAN_GAP_S = 5, 2.0
FLOOR = "50mcpu"  # that of the default profile
NRI = {"told": {"enabled": "on"}, "not told": {"enabled": "off"}}
SOURCE = Path(__file__).with_name("until_limited.c")
IMAGE = "example.org/until-limited:local"


class Kind(NamedTuple):
    """Pods, and the file below their container's cgroup that does not begin with a character."""

    labels: Json
    requests: Json
    file: str
    before: str


KINDS = {
    "BestEffort": Kind({}, {}, "../cpu.idle", "0"),
    "Burstable": Kind(BATCH, {"requests": {"cpu": "10m"}}, "cpu.cfs_quota_us", "-"),
}


def spec(kind: Kind) -> Json:
    """Return the spec of a pod of *kind*."""
    main = {
        **{"name": "main", "image": IMAGE, "imagePullPolicy": "Never"},
        **{"args": [kind.file, kind.before], "resources": kind.requests},
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    volumes = [{"name": "host", "hostPath": {"path": "/sys/fs/cgroup"}}]
    return {"volumes": volumes, "containers": [main]}


@pytest.fixture
def namespace(node: RealNode, tmp_path: Path) -> Iterator[str]:
    """A new namespace on the node, with a service and a job that it suffers from, and the image."""
    program = tmp_path / "until_limited"
    subprocess.run(["gcc", "-O2", "-static", "-o", program, SOURCE], check=True)
    archive = tmp_path / "image.tar"
    save_files(archive, IMAGE, ["/bin/until_limited"], {"bin/until_limited": program})
    node.add_image(archive)
    name = node.make_namespace(node.cluster.new_name("test"))
    node.run_pod(name, "web", resources("Burstable"), SERVICE)
    node.run_pod(name, "job", KINDS["Burstable"].requests, HOG, labels=BATCH)
    yield name
    for pod in ("web", "job"):
        node.delete_pod(name, pod)


class Start(NamedTuple):
    """What a container had until the first value, and how long its pod took to start, in us."""

    cpu_us: float
    real_us: float
    started_us: float


def printed(node: RealNode, pod: Json, made: datetime) -> Start | None:
    """Return what the program of *pod* printed; the pod was made at *made*."""
    meta = pod["metadata"]
    folder = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
    log = node.host.file(f"/var/log/pods/{folder}/main/0.log").read_text()
    if not log.endswith("\n"):
        return None
    when, _, _, cpu_us, real_us = log.split()
    took = datetime.fromisoformat(when) - made
    return Start(float(cpu_us), float(real_us), took.total_seconds() * 1e6 - float(real_us))


def start_some(node: RealNode, namespace: str, kind: Kind, numbers: random.Random) -> list[Start]:
    """Start ``AT_ONCE`` pods at random moments and return what they printed."""
    pods = []
    for number in range(AT_ONCE):
        time.sleep(numbers.expovariate(1 / MEAN_GAP_S))
        made = datetime.now(UTC)
        pod = node.make_pod(namespace, f"new-{number}", {}, labels=kind.labels, spec=spec(kind))
        pods.append((pod, made))
    found = [node.wait("a first value", partial(printed, node, *pod)) for pod in pods]
    for pod, _ in pods:
        node.delete_pod(namespace, pod["metadata"]["name"])
    return found


def describe(values_us: Sequence[float]) -> str:
    """Return the median and the p99 of *values_us*."""
    p99_us = statistics.quantiles(values_us, n=100, method="inclusive")[-1]
    return f"{statistics.median(values_us) / 1e3:.2f} ms, p99 {p99_us / 1e3:.2f} ms"


@pytest.mark.parametrize("kind", list(KINDS))
def test_time_before_the_first_value(
    node: RealNode, namespace: str, tmp_path: Path, kind: str
) -> None:
    numbers = random.Random(1)
    found: dict[str, list[Start]] = {how: [] for how in NRI}
    late = 0
    while len(found["not told"]) < PODS:
        for how, nri in NRI.items():
            home = tmp_path / how.replace(" ", "-")
            home.mkdir(exist_ok=True)
            agent = Agent(node, home, nri=nri, floor=FLOOR)
            agent.start()
            try:
                if how == "told":
                    agent.wait_for_plugin()
                # New work has a quota at once while others are squeezed.
                squeezed(node, node.pod(namespace, "job"), "main")
                some = start_some(node, namespace, KINDS[kind], numbers)
                found[how] += some
                print(f"\n{how}: CPU time {[round(each.cpu_us) for each in some]} us")
                if how == "told":
                    late += agent.doorbell()["late"]
            finally:
                agent.stop()
    for how, every in found.items():
        cpu_us, real_us, started_us = zip(*every, strict=True)
        print(
            f"\n{kind}, {how}: {cpu_us.count(0)} of {len(every)} had no CPU time before; "
            f"CPU time {describe(cpu_us)}; real time {describe(real_us)}; "
            f"from the creation of the pod to the program {describe(started_us)}"
        )
    print(f"late answers: {late}")
    assert statistics.median(each.cpu_us for each in found["told"]) == 0
