# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The controller of a rollout in the chart: apart from the agents, with what they agree on."""

from helm_python import HelmError
import pytest

from controller.config.profile_set import parse_profiles
from controller.rollout.spec import promoted_text, read_proposal
from tests.deploy.chart import CASES, Manifest, find, render, rendered


def test_the_controller_of_a_rollout_is_none_of_the_agents() -> None:
    case = next(each for each in CASES if each.name == "rollout")
    deployment, agents_set = (find(rendered(case), kind) for kind in ("Deployment", "DaemonSet"))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    wanted = agents_set["spec"]["selector"]["matchLabels"]
    assert not wanted.items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    spec = deployment["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert "volumes" not in spec
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_specification_is_what_the_controller_reads() -> None:
    case = next(each for each in CASES if each.name == "rollout")
    data = {
        name.removeprefix("sweetpoint-"): each["data"]
        for each in rendered(case)
        if each["kind"] == "ConfigMap"
        for name in (each["metadata"]["name"],)
    }
    arguments = find(rendered(case), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "--rollout=sweetpoint-rollout" in arguments["args"]
    assert "--profiles=sweetpoint-profiles" in arguments["args"]
    spec, proposal = read_proposal(data["rollout"], data["profiles"])
    assert (spec.replaces, dict(spec.nodes)) == ("default", {"pool": "canary"})
    assert proposal is not None
    promoted = {"default.yaml": promoted_text(proposal)}
    found = parse_profiles(promoted, "promoted", tick_ns=200_000_000, cpus=4)["default"]
    assert [each.sweet_point for each in found.indicators] == [3e6]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"rollout": {"enabled": True}}, "needs rollout.spec"),
        (
            {
                "rollout": {
                    "enabled": True,
                    "spec": {"candidate": "a", "replaces": "b", "nodes": {"c": "d"}},
                },
                "config": {"kubernetes": {"profiles": {"namespace": "other"}}},
            },
            "namespace of the release",
        ),
    ],
)
def test_a_rollout_that_cannot_work_is_refused(values: Manifest, problem: str) -> None:
    with pytest.raises(HelmError, match=problem):
        list(render({"image": {"repository": "sweetpoint"}, **values}))
