# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The chart's agent as a plugin of the container runtime, and what it says of that."""

import json

from tests.kube.client import Json
from tests.kube.hogs import LAW
from tests.kube.real_node import RealNode
from tests.kube.release import Release

__all__ = ("TOLD", "answered", "answers", "doorbell", "is_connected", "status")

# The longest tick that the profiles allow, so that few ticks come by themselves.
TOLD = {
    "nri": {"mount": True},
    "config": {"law": LAW, "tick": "1s", "nri": {"answer_within": "1s"}},
}


def status(node: RealNode, address: str) -> Json:
    """Return the state of the agent at *address*."""
    text = node.host.run("busybox", "wget", "-qO-", f"http://{address}:9464/statusz")
    return dict(json.loads(text))


def doorbell(release: Release) -> Json:
    """Return the state of the agent's plugin, from /statusz."""
    found: Json = status(release.node, release.agent()["status"]["podIP"])["nri"]
    return found


def answers(state: Json) -> int:
    """Return how many answers the runtime got."""
    return int(state["in_time"]) + int(state["late"])


def answered(release: Release, count: int) -> Json | None:
    """Return the state of the agent's plugin once it has given *count* answers."""
    state = doorbell(release)
    return state if answers(state) >= count else None


def is_connected(release: Release) -> bool:
    """Whether the runtime knows the agent's plugin, from /statusz."""
    return not doorbell(release)["problem"]
