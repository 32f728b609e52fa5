# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pairs of a trial in the annotation of the Node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.cli.trial_publisher import Publisher
from controller.rollout.summary import TRIAL_KEY, decode
from controller.trial.blocks import TrialError
from tests.support.kube.api_stand_in import ApiStandIn, status
from tests.support.rollout import pairs_from

NODE = "/api/v1/nodes/n1"


@pytest.fixture
def server() -> Iterator[ApiStandIn]:
    with ApiStandIn() as server:
        server.put(NODE, {"metadata": {"name": "n1", "annotations": {"other": "1"}}})
        yield server


def config(server: ApiStandIn, directory: Path) -> Path:
    file = directory / "config.yaml"
    kubeconfig = server.kubeconfig(directory / "kubeconfig")
    file.write_text(f"kubernetes: {{node: n1, kubeconfig: {kubeconfig}}}\n")
    return file


def test_the_last_pairs_replace_those_before(server: ApiStandIn, tmp_path: Path) -> None:
    publisher = Publisher(config(server, tmp_path), "n1")
    for count in (1, 3):
        assert publisher.publish(pairs_from(1.8e9, count)) == ""
        annotations = server.objects[NODE]["metadata"]["annotations"]
        assert annotations["other"] == "1"
        assert len(decode(annotations[TRIAL_KEY])) == count


def test_a_failure_is_told_and_ends_nothing(server: ApiStandIn, tmp_path: Path) -> None:
    publisher = Publisher(config(server, tmp_path), "n1")
    server.before = lambda _: status(403, "no right")
    assert "no right" in publisher.publish(pairs_from(1.8e9, 1))
    server.before = lambda _: None
    del server.objects[NODE]
    assert publisher.publish(pairs_from(1.8e9, 1)) == "there is no Node 'n1'"


def test_a_host_without_a_cluster_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("workloads: [{name: web, cgroup: /web, class: latency-sensitive}]\n")
    with pytest.raises(TrialError, match="section kubernetes"):
        Publisher(file, "n1")
