# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint learn`` on cgroups of a test, until it has seen enough."""

from collections.abc import Callable, Sequence
from dataclasses import replace
import os
from pathlib import Path
import signal

import pytest
import yaml

from controller.agent import observation
from controller.agent.observation import Observation
from controller.agent.sampler import Sampler
from controller.cli.main import main
from controller.config.fields import check
from controller.config.models import ProfileModel
from controller.config.yaml_document import parse_document
from controller.core.decision import Plan
from controller.core.learning import normal, quiet, state
from controller.core.learning.quiet import Disturbance
from controller.core.model import Snapshot
from controller.host.facts import CgroupLayout
from tests.kernel.loads import Load, loads
from tests.kernel.overload import outweigh
from tests.support.loops.closed_loop import TICK_NS
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.kernel

Enough = Callable[[Plan, Sequence[Observation]], bool]


class PunctualSampler(Sampler):
    """A sampler whose clock is that of the ticks, none of which is late."""

    _polls = 0

    def poll(self) -> Snapshot:
        self._polls += 1
        return replace(super().poll(), time_ns=self._polls * TICK_NS, age_ns=0)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "Sampler", PunctualSampler)
    monkeypatch.setattr(state, "LEAST_WINDOWS", 5)
    monkeypatch.setattr(state, "_LEAST_NS", 0)
    monkeypatch.setattr(normal, "_BLOCK", 1)
    # What else runs on this machine is not this test's, nor how much the values vary by it.
    monkeypatch.setattr(normal, "_DIFFER", 100.0)
    monkeypatch.setattr(quiet, "_OUTSIDE_SHARE", 100.0)
    monkeypatch.setattr(quiet, "_STEAL_SHARE", 100.0)
    monkeypatch.setattr(quiet, "_SETTLE_NS", 0)


@pytest.fixture
def config(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Path:
    outweigh(cgroup_root, 100)  # so that its own hog, and no other work, is what disturbs
    path = tmp_path / "config.yaml"
    text = f"state_dir: {tmp_path}/state\ndata_dir: {tmp_path}/data\nworkloads:\n"
    classes = {"web": "latency-sensitive", "api": "latency-sensitive", "batch": "best-effort"}
    for name, qos in classes.items():
        (cgroup_root / name).mkdir()
        where = (cgroup_root / name).relative_to(cgroup_layout.mount)
        text += f"  - {{name: {name}, cgroup: /{where}, class: {qos}}}\n"
    path.write_text(text)
    return path


@pytest.fixture
def learn(config: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command until there is *enough* in a tick, and interrupts it then."""
    count = observation._count

    def until(enough: Enough, *arguments: str) -> int:
        def counted(
            plan: Plan, neighbours: Sequence[str], observations: Sequence[Observation]
        ) -> None:
            count(plan, neighbours, observations)
            if enough(plan, observations):
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(observation, "_count", counted)
        return main(["learn", "--config", str(config), "--for", f"{DEADLINE_S:.0f}s", *arguments])

    return until


def is_sure(plan: Plan, observations: Sequence[Observation]) -> bool:
    """Whether enough is known of the waits of each observed service."""
    waits = (each for each in plan.learned if each.indicator == "runq_delay_p99")
    return {each.service for each in observations} <= {w.service for w in waits if w.is_sure}


# The whole path, from the probe to a profile.
def test_a_service_alone_gives_a_profile(
    learn: Callable[..., int],
    cgroup_root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = tmp_path / "web.yaml"
    with loads([Load(cgroup_root / "web", "bursts")]) as running:
        running.start()
        assert learn(is_sure, "--write", str(written), "web") == 0
    assert capsys.readouterr().out == ""
    model = check(parse_document(written.read_text(), "web.yaml"), ProfileModel)
    assert "runq_delay_p99" in model.indicators
    assert "# cpi: this host or service has no source for it" in written.read_text() or (
        "cpi" in model.indicators
    )
    assert not (tmp_path / "state").exists()


@pytest.mark.thorough
def test_beside_a_hog_nothing_is_written_and_the_reason_is_given(
    learn: Callable[..., int],
    cgroup_root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def is_disturbed(plan: Plan, observations: Sequence[Observation]) -> bool:
        return observations[0].neighbours[Disturbance.BEST_EFFORT] >= 20

    written = tmp_path / "web.yaml"
    wanted = [Load(cgroup_root / "web", "bursts"), Load(cgroup_root / "batch", "hog")]
    with loads(wanted) as running:
        running.start()
        assert learn(is_disturbed, "--write", str(written), "web") == 1
    assert "web: no profile: best-effort work is running in " in capsys.readouterr().err
    assert not written.exists()


@pytest.mark.thorough
def test_profiles_of_several_services_are_documents_of_one_stream(
    learn: Callable[..., int], cgroup_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with loads([Load(cgroup_root / name, "bursts") for name in ("api", "web")]) as running:
        running.start()
        assert learn(is_sure, "api", "web") == 0
    profiles = yaml.safe_load_all(capsys.readouterr().out)
    assert [profile["name"] for profile in profiles] == ["api", "web"]


@pytest.mark.thorough
def test_it_ends_by_itself_and_says_why_there_is_no_profile(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learn", "--config", str(config), "--for", "1s", "web"]) == 1
    assert "web: no profile: " in capsys.readouterr().err
