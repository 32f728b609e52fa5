# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A service on a real node, two best-effort pods that it suffers from, and what limits them."""

import contextlib
import os
from pathlib import Path
import signal

from tests.kube.client import Json
from tests.kube.cluster import resources
from tests.kube.real_node import RealNode
from tests.kube.release import Release
from tests.support.cgroups import children_of

__all__ = (
    "HOG",
    "LAW",
    "PROFILE",
    "agent_pids",
    "besteffort",
    "hogs",
    "is_idle",
    "is_squeezed",
    "kill_agent",
    "kill_child",
    "profile",
    "start_pods",
    "wait_for_idle",
    "wait_for_squeeze",
    "without_levels",
)

# Computes about an eighth of the time: more would only keep other tests from a CPU.
HOG = "while :; do i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); done; sleep 0.02; done"
# Runs a little, often: it waits for a CPU beside other work.
_SERVICE = "while :; do sleep 0.005; i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); done; done"


def profile(channel: str) -> Json:
    """Return one that squeezes best-effort work to its floor and releases it, again and again."""
    return {
        "indicators": {
            "runq_p99": {
                **{"sweet_point": "20us", "resolution": "10us", "window": "1s", "filter": "0s"},
                **{"gains": {"kp": 1, "ti": "200ms"}, "channel": channel},
            }
        },
        # Other work of the machine may cause most of the wait.
        "be_share_min": "0%",
        "channels": [channel],
        # On a busy machine a pod may get little anyway; below its floor it has no quota.
        "knobs": {"cpu.quota": {"floor": "10mcpu", "squeeze": "10/s"}},
    }


# On the cpu channel a loop asks for no more than best-effort's part of the wait, which is nothing
# on a busy machine. On this one the evidence is the use of best-effort work.
PROFILE = profile("cache")
# Where other work of the machine causes the wait, a trial finds that a squeeze does not help, and
# ends it.
LAW = {"verify_squeeze": False}
_HOGS = ("one", "two")


def start_pods(node: RealNode, namespace: str) -> None:
    """Start the service ``web`` and the best-effort pods ``one`` and ``two``."""
    node.run_pod(namespace, "web", resources("Burstable"), _SERVICE)
    for name in _HOGS:
        node.run_pod(namespace, name, {}, HOG)


def besteffort(node: RealNode, pod: Json) -> Path:
    """Return the cgroup of a BestEffort pod."""
    return node.host.cgroup("cpu", f"kubepods/besteffort/pod{pod['metadata']['uid']}")


def is_idle(cgroup: Path) -> bool:
    """Whether *cgroup* is sched-idle."""
    return (cgroup / "cpu.idle").read_text() == "1\n"


def is_squeezed(cgroup: Path) -> bool:
    """Whether *cgroup* has a quota."""
    return int((cgroup / "cpu.cfs_quota_us").read_text()) > 0


def hogs(node: RealNode, namespace: str) -> list[Path]:
    """Return the cgroups of the best-effort pods."""
    return [besteffort(node, node.pod(namespace, name)) for name in _HOGS]


def wait_for_idle(release: Release, namespace: str) -> None:
    """Wait until the best-effort pods are idle."""
    cgroups = hogs(release.node, namespace)
    release.node.wait("sched-idle", lambda: all(map(is_idle, cgroups)))


def wait_for_squeeze(release: Release, namespace: str) -> None:
    """Wait until the best-effort pods are idle, and one of them squeezed."""
    wait_for_idle(release, namespace)
    cgroups = hogs(release.node, namespace)
    release.node.wait("a squeeze", lambda: any(map(is_squeezed, cgroups)))


def agent_pids(release: Release) -> list[int]:
    """Return every process of the agent's pod."""
    uid = release.agent()["metadata"]["uid"]
    cgroup = release.node.host.cgroup("cpu", f"kubepods/burstable/pod{uid}")
    files = sorted(cgroup.glob("*/cgroup.procs"))
    return [pid for file in files for pid in map(int, file.read_text().split())]


def kill_agent(release: Release) -> None:
    """Kill every process of the agent's pod, none of which can act on the end of another one."""
    pids = agent_pids(release)
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            # containerd kills the others as soon as the first one has ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)


def kill_child(release: Release) -> None:
    """Kill the agent of the agent's pod, but not its guardian, which starts another one."""
    pids = set(agent_pids(release))
    (guardian,) = (pid for pid in pids if not pids.isdisjoint(children_of(pid)))
    for pid in children_of(guardian):
        os.kill(pid, signal.SIGKILL)


def without_levels(knobs: dict[str, str]) -> dict[str, str]:
    """Return *knobs* without those of the levels.

    Their weights follow the number of pods, up to a minute later.
    """
    return {name: text for name, text in knobs.items() if name.count("/") > 1}
