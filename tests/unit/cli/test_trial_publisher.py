# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pairs of a trial in the annotation of the Node."""

from collections.abc import Iterator
import contextlib
from dataclasses import replace
import itertools
import os
from pathlib import Path
import signal
from typing import Any

import pytest

from controller.cli.main import main
from controller.cli.trial_publisher import Publisher
from controller.rollout.summary import TRIAL_KEY, Trial, decode
from controller.trial.blocks import TrialError
from controller.trial.comparison import Comparison
from tests.support.kube.api_stand_in import ApiStandIn, Asked, status
from tests.support.rollout import pairs_from
from tests.support.trial import MadeAgent

NODE = "/api/v1/nodes/n1"
HOST = f"/api/v1/nodes/{os.uname().nodename}"


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
    publisher = Publisher(config(server, tmp_path), "n1", "")
    for count in (1, 3):
        assert publisher.publish(pairs_from(1.8e9, count), Comparison()) == ""
        annotations = server.objects[NODE]["metadata"]["annotations"]
        assert annotations["other"] == "1"
        found = decode(annotations[TRIAL_KEY])
        assert len(found.pairs) == count
        assert (found.policy, found.replaces) == ("", {})


def test_what_the_policy_sets_is_published(server: ApiStandIn, tmp_path: Path) -> None:
    publisher = Publisher(config(server, tmp_path), "n1", "both")
    also = ("law.find_harm=false", "reserve=0cpu")
    compared = Comparison({"default": "nginx"}, also)
    assert publisher.publish((), compared, 1.8e9) == ""
    found = decode(server.objects[NODE]["metadata"]["annotations"][TRIAL_KEY])
    expected = Trial(policy="both", replaces={"default": "nginx"}, also=also, hurt_s=1.8e9)
    assert replace(found, pairs=()) == expected


CANARY = Comparison({"default": "nginx"})


@pytest.mark.parametrize(
    ("policy", "compared", "later_s", "expected"),
    [
        ("canary", CANARY, None, 1.8e9),
        ("canary", CANARY, 1.9e9, 1.9e9),
        ("canary", CANARY, 1.7e9, 1.8e9),
        ("same", CANARY, None, 1.8e9),
        ("canary", CANARY._replace(also=("reserve=0cpu",)), None, None),
        ("canary", Comparison({"default": "fast"}), None, None),
        ("", Comparison(), None, None),
    ],
)
def test_harm_stays_when_the_next_trial_of_the_same_publishes(
    policy: str,
    compared: Comparison,
    later_s: float | None,
    expected: float | None,
    server: ApiStandIn,
    tmp_path: Path,
) -> None:
    file = config(server, tmp_path)
    assert Publisher(file, "n1", "canary").publish((), CANARY, 1.8e9) == ""
    following = Publisher(file, "n1", policy)
    for count in (1, 2):
        assert following.publish(pairs_from(1.8e9, count), compared, later_s) == ""
        found = decode(server.objects[NODE]["metadata"]["annotations"][TRIAL_KEY])
        assert (len(found.pairs), found.hurt_s) == (count, expected)


@pytest.mark.parametrize("other", ["law.fast_rise=false", "law.find_harm=true", "reserve=0cpu"])
def test_harm_of_another_part_of_the_law_is_not_that_of_this_one(
    other: str, server: ApiStandIn, tmp_path: Path
) -> None:
    publisher = Publisher(config(server, tmp_path), "n1", "canary")
    compared = Comparison(also=("law.find_harm=false",))
    for also, hurt_s, expected in (
        (compared, 1.8e9, 1.8e9),
        (compared, None, 1.8e9),
        (Comparison(also=(other,)), None, None),
    ):
        assert publisher.publish((), also, hurt_s) == ""
        annotations = server.objects[NODE]["metadata"]["annotations"]
        assert decode(annotations[TRIAL_KEY]).hurt_s == expected


@pytest.mark.parametrize("text", ["", "[1,[]]", "x"])
def test_an_annotation_that_is_no_trial_is_replaced(
    text: str, server: ApiStandIn, tmp_path: Path
) -> None:
    server.objects[NODE]["metadata"]["annotations"][TRIAL_KEY] = text
    publisher = Publisher(config(server, tmp_path), "n1", "canary")
    assert publisher.publish(pairs_from(1.8e9, 1), Comparison()) == ""
    found = decode(server.objects[NODE]["metadata"]["annotations"][TRIAL_KEY])
    assert (len(found.pairs), found.hurt_s) == (1, None)


def test_a_failure_is_told_and_ends_nothing(server: ApiStandIn, tmp_path: Path) -> None:
    publisher = Publisher(config(server, tmp_path), "n1", "")
    server.before = lambda _: status(403, "no right")
    assert "no right" in publisher.publish(pairs_from(1.8e9, 1), Comparison())
    server.before = lambda _: None
    del server.objects[NODE]
    assert publisher.publish(pairs_from(1.8e9, 1), Comparison()) == "there is no Node 'n1'"


def test_a_host_without_a_cluster_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("workloads: [{name: web, cgroup: /web, class: latency-sensitive}]\n")
    with pytest.raises(TrialError, match="section kubernetes"):
        Publisher(file, "n1", "")


@pytest.fixture
def signals() -> Iterator[None]:
    """Handlers of signals as before the test; a trial sets them."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("signals")
def test_a_policy_that_hurts_is_published_though_its_trial_ends(
    server: ApiStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = MadeAgent(policy="canary", suffers=lambda paused: 0.1 if paused else 0.9)
    run_trial(agent, server, tmp_path, monkeypatch)
    found = decode(server.objects[HOST]["metadata"]["annotations"][TRIAL_KEY])
    assert (found.policy, len(found.pairs)) == ("canary", 1)
    # When the block began, not when the trial ended: another candidate may have come meanwhile.
    began_s, _ = agent.log[-1]
    assert found.hurt_s == pytest.approx(began_s, abs=2.0)


@pytest.mark.usefixtures("signals")
def test_harm_is_published_though_the_report_cannot_be_written(
    server: ApiStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = MadeAgent(policy="canary", suffers=lambda paused: 0.1 if paused else 0.9)
    with contextlib.suppress(OSError):
        run_trial(agent, server, tmp_path, monkeypatch, "--report", "/dev/full")
    found = decode(server.objects[HOST]["metadata"]["annotations"][TRIAL_KEY])
    assert found.hurt_s is not None


@pytest.mark.usefixtures("signals")
def test_harm_is_published_when_the_server_is_back(
    server: ApiStandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = MadeAgent(policy="canary", suffers=lambda paused: 0.1 if paused else 0.9)
    tries: list[float] = []

    def refuse(asked: Asked) -> tuple[int, dict[str, Any]] | None:
        tries.append(agent.now)
        return status(503, "away") if len(tries) <= 4 else None

    server.before = refuse
    run_trial(agent, server, tmp_path, monkeypatch)
    found = decode(server.objects[HOST]["metadata"]["annotations"][TRIAL_KEY])
    assert found.hurt_s is not None
    assert [later - first for first, later in itertools.pairwise(tries[1:5])] == [10.0] * 3
    assert capsys.readouterr().err.count("the harm is not published yet: 503") == 3


@pytest.mark.usefixtures("signals")
def test_pairs_of_an_earlier_configuration_are_left_out(
    server: ApiStandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = MadeAgent(policy="canary", replaces={"default": "fast"})

    def change() -> None:
        agent.config, agent.replaces = "two", {"default": "slow"}

    agent.at = [(1000 + 5.5 * 120, change)]
    run_trial(agent, server, tmp_path, monkeypatch, code=0)
    found = decode(server.objects[HOST]["metadata"]["annotations"][TRIAL_KEY])
    assert (len(found.pairs), found.replaces) == (4, {"default": "slow"})
    out, err = capsys.readouterr()
    note = "5 pairs left out: then the configuration changed"
    assert note in out
    assert "1 pair lost, because the agent was started again or configured otherwise" in err
    assert main(["trial", "--read", str(tmp_path / "pairs")]) == 0
    assert capsys.readouterr().out == out
    report = tmp_path / "report.html"
    assert main(["trial", "--read", str(tmp_path / "pairs"), "--report", str(report)]) == 0
    assert note in report.read_text()


@pytest.mark.usefixtures("signals")
def test_without_a_pair_after_the_last_change_file_and_report_say_the_same(
    server: ApiStandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = MadeAgent(policy="canary")
    agent.at = [(1000 + 9.5 * 120, lambda: setattr(agent, "config", "two"))]
    run_trial(agent, server, tmp_path, monkeypatch, code=0)
    out = capsys.readouterr().out
    assert "9 pairs left out: then the configuration changed" in out
    assert "no pair was finished, so nothing is known" in out
    assert main(["trial", "--read", str(tmp_path / "pairs")]) == 0
    assert capsys.readouterr().out == out


def run_trial(
    agent: MadeAgent,
    server: ApiStandIn,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *more: str,
    code: int = 1,
) -> None:
    """Run a trial of the policy on *agent*, which ends with *code*; *more* are options."""
    server.put(HOST, {"metadata": {"name": os.uname().nodename}})
    monkeypatch.setattr(MadeAgent, "first_page", MadeAgent.page, raising=False)
    monkeypatch.setattr("controller.cli.trial_run.HostAgent", lambda *_: agent)
    monkeypatch.setattr("controller.cli.trial_run.SystemClock", lambda: agent)
    options = ("--for", "20m", "--block", "1m", "--seed", "1", "--policy", "canary", "--publish")
    where = ("--config", str(config(server, directory)))
    assert main(["trial", *where, *options, *more, "--blocks", str(directory / "pairs")]) == code
