# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint learn`` on cgroups of a test, with seconds in place of minutes."""

import os
from pathlib import Path
import signal

import pytest
import yaml

from controller.cli import learn as learn_command
from controller.cli.main import main
from controller.config.fields import check
from controller.config.models import ProfileModel
from controller.config.yaml_document import parse_document
from controller.core.learning import normal, quiet, state
from controller.host.facts import CgroupLayout
from tests.kernel.loads import Load, loads
from tests.kernel.overload import outweigh

pytestmark = pytest.mark.kernel

SECONDS = 20


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LEAST_WINDOWS", 5)
    monkeypatch.setattr(state, "_LEAST_NS", 0)
    # What else runs on this machine is not this test's, nor how much the values vary by it.
    monkeypatch.setattr(normal, "_DIFFER", 100.0)
    monkeypatch.setattr(quiet, "_OUTSIDE_SHARE", 100.0)
    monkeypatch.setattr(quiet, "_STEAL_SHARE", 100.0)
    # A late tick of this process, which has no priority here, spoils its own window only.
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


def learn(config: Path, *arguments: str) -> int:
    return main(["learn", "--config", str(config), *arguments, "web"])


def test_a_service_alone_gives_a_profile(
    config: Path, cgroup_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "web.yaml"
    with loads([Load(cgroup_root / "web", "bursts")], seconds=SECONDS + 30) as running:
        running.start()
        assert learn(config, "--for", f"{SECONDS}s", "--write", str(written)) == 0
    assert capsys.readouterr().out == ""
    model = check(parse_document(written.read_text(), "web.yaml"), ProfileModel)
    assert "runq_delay_p99" in model.indicators
    assert "# cpi: this host or service has no source for it" in written.read_text() or (
        "cpi" in model.indicators
    )
    assert not (tmp_path / "state").exists()


def test_beside_a_hog_nothing_is_written_and_the_reason_is_given(
    config: Path, cgroup_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "web.yaml"
    wanted = [Load(cgroup_root / "web", "bursts"), Load(cgroup_root / "batch", "hog")]
    with loads(wanted, seconds=SECONDS + 30) as running:
        running.start()
        assert learn(config, "--for", f"{SECONDS}s", "--write", str(written)) == 1
    assert "web: no profile: best-effort work is running in " in capsys.readouterr().err
    assert not written.exists()


def test_an_interrupt_ends_it_with_what_is_known(
    config: Path,
    cgroup_root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(left_s: float) -> None:
        if left_s < 3600 - SECONDS:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(learn_command, "_tell", interrupt)
    wanted = [Load(cgroup_root / name, "bursts") for name in ("api", "web")]
    with loads(wanted, seconds=SECONDS + 30) as running:
        running.start()
        assert learn(config, "--for", "1h", "api") == 0
    # With several services the profiles are documents of one stream.
    profiles = yaml.safe_load_all(capsys.readouterr().out)
    assert [profile["name"] for profile in profiles] == ["api", "web"]
