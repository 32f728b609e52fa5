# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint init``: the configuration that it writes loads, and names only what is there."""

from pathlib import Path
import re

import pytest

from controller.cli.init import first_config
from controller.cli.main import main
from controller.cli.summary import summarize
from controller.config.load import load
from controller.core.model import Mode, QosClass
from controller.host.facts import CgroupLayout, find_cgroup_layout
from controller.workloads.pods.cgroups import find_roots
from controller.workloads.static import scan
from controller.workloads.survey import survey


def make(mount: Path, path: str, **files: str) -> None:
    folder = mount / path
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def v1(tmp_path: Path) -> CgroupLayout:
    mount = tmp_path / "cpu"
    for name in ("nginx", "redis-server@6380", "ssh", "systemd-journald", r"a\x2db"):
        make(mount, f"system.slice/{name}.service", cpu__shares="1024", cpuacct__usage="0")
    make(mount, "system.slice/shop.service", cpu__shares="1024", cpuacct__usage=str(10**13))
    make(mount, "system.slice/encoder.service", cpu__shares="128")
    make(mount, "batch.slice/one.service", cpu__shares="1024")
    make(mount, "user.slice/user-0.slice/user@0.service/app.slice/x.service")
    return CgroupLayout(hierarchy="cpu", mount=mount, version="v1", unified=None)


@pytest.fixture
def v2(tmp_path: Path) -> CgroupLayout:
    mount = tmp_path / "unified"
    make(mount, "system.slice", cpu__max="max 100000", cpu__weight="100")
    for name, weight in (("nginx", 100), ("shop", 100), ("encoder", 20)):
        make(
            mount,
            f"system.slice/{name}.service",
            cpu__max="max 100000",
            cpu__weight=str(weight),
            cpu__stat="usage_usec 7200000000\nuser_usec 1",
        )
    make(mount, "system.slice/plain.service", cpu__stat="usage_usec 60000000")
    make(mount, "idle.slice/job.service", cpu__max="max 100000", cpu__weight="1", cpu__idle="1")
    return CgroupLayout(hierarchy="v2", mount=mount, version="v2", unified=mount)


def loaded(folder: Path, text: str, layout: CgroupLayout) -> dict[str, tuple[QosClass, str]]:
    """Return class and profile by cgroup; fails if the agent would miss one of *text*."""
    file = folder / "config.yaml"
    file.write_text(text)
    config = load(file, cpus=4)
    assert config.settings.mode is Mode.OBSERVE
    found = scan(layout, config.workloads)
    assert (found.left_out, found.missing) == ((), ())
    return {rule.cgroup: (rule.qos, rule.profile) for rule in config.workloads}


def test_on_cgroup_v1(tmp_path: Path, v1: CgroupLayout) -> None:
    text = first_config(survey(v1))
    assert loaded(tmp_path, text, v1) == {
        "/system.slice/nginx.service": (QosClass.LS, "nginx"),
        "/system.slice/redis-server@6380.service": (QosClass.LS, "redis"),
        "/system.slice/encoder.service": (QosClass.BE, ""),
        "/batch.slice/*": (QosClass.BE, ""),
    }
    # What is not recognised is offered in comments, those of the system are not.
    assert "used 2.8h of CPU time" in text
    assert "ssh" not in text and "journald" not in text
    assert "/x.service" not in text


def test_on_cgroup_v2(tmp_path: Path, v2: CgroupLayout) -> None:
    text = first_config(survey(v2))
    assert loaded(tmp_path, text, v2) == {
        "/system.slice/nginx.service": (QosClass.LS, "nginx"),
        "/system.slice/encoder.service": (QosClass.BE, ""),
        "/idle.slice/job.service": (QosClass.BE, ""),
        "/batch.slice/*": (QosClass.BE, ""),
    }
    # A cgroup without the cpu controller would keep the agent from starting.
    uncontrolled = text[text.index("Without the cpu controller") :]
    assert "plain.service" in uncontrolled
    assert "shop.service" not in uncontrolled


@pytest.mark.parametrize("host", ["v1", "v2"])
def test_the_comments_are_entries(
    tmp_path: Path, host: str, request: pytest.FixtureRequest
) -> None:
    layout: CgroupLayout = request.getfixturevalue(host)
    text = first_config(survey(layout)).partition("Without the cpu controller")[0]
    text = re.sub(r"^  # (?=- name|  cgroup|  class)", "  ", text, flags=re.MULTILINE)
    found = loaded(tmp_path, text, layout)
    assert found["/system.slice/shop.service"] == (QosClass.LS, "default")
    if host == "v1":
        assert r"/system.slice/a\x2db.service" in found


def test_names_in_the_tree_cannot_change_the_file(tmp_path: Path, v1: CgroupLayout) -> None:
    for name in ("x\nmode: enforce\n.service", "[a].service", 'q".service', "é.service"):
        (v1.mount / "system.slice" / name).mkdir()
    for path in ("user.slice/nginx.service", "user.slice/batch.service"):
        make(v1.mount, path)
    found = loaded(tmp_path, first_config(survey(v1)), v1)
    assert len(found) == 5
    assert found["/user.slice/nginx.service"] == (QosClass.LS, "nginx")


def test_an_empty_tree(tmp_path: Path) -> None:
    layout = CgroupLayout(hierarchy="cpu", mount=tmp_path, version="v1", unified=None)
    text = first_config(survey(layout))
    assert loaded(tmp_path, text, layout) == {"/batch.slice/*": (QosClass.BE, "")}
    config = load(tmp_path / "config.yaml")
    mountinfo = f"30 25 0:26 / {tmp_path} rw - cgroup cgroup rw,cpu\n"
    assert summarize(config, mountinfo).workloads[0].problem == "none now"


def test_on_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "config.yaml"
    code = main(["init", "--write", str(file)])
    if code == 1:  # a node of Kubernetes, or a test of one runs at the same time
        assert find_roots(find_cgroup_layout().mount) or "node of Kubernetes" in (
            capsys.readouterr().err
        )
        assert not file.exists()
        return
    assert code == 0
    assert main(["check", "--config", str(file)]) == 0
    assert "mode: observe" in file.read_text()


def test_an_existing_file_is_replaced_only_by_force(
    tmp_path: Path,
    v1: CgroupLayout,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controller.host.facts.find_cgroup_layout", lambda: v1)
    file = tmp_path / "new" / "config.yaml"
    file.parent.mkdir()
    file.write_text("mine\n")
    assert main(["init", "--write", str(file)]) == 1
    assert "exists; --force replaces it" in capsys.readouterr().err
    assert file.read_text() == "mine\n"
    assert main(["init", "--write", str(file), "--force"]) == 0
    assert "mode: observe" in file.read_text()
    assert [each.name for each in file.parent.iterdir()] == ["config.yaml"]
    capsys.readouterr()
    assert main(["init"]) == 0
    assert "mode: observe" in capsys.readouterr().out


def test_a_node_of_kubernetes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubepods.slice").mkdir()
    layout = CgroupLayout(hierarchy="cpu", mount=tmp_path, version="v1", unified=None)
    monkeypatch.setattr("controller.host.facts.find_cgroup_layout", lambda: layout)
    assert main(["init"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "/kubepods.slice" in printed.err
    assert "deploy/chart" in printed.err
