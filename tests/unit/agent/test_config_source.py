# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""With which configuration an agent starts: that of the file, or after a crash the one before."""

import logging
import os
from pathlib import Path

import pytest

from controller.agent.config_source import ConfigSource
from controller.config.load import ConfigError
from controller.core.model import IndicatorName, Mode
from controller.host.kept_config import forget_config

GOOD = """\
mode: enforce
reserve: 1cpu
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive, profile: mine}
profiles: [mine.yaml]
"""
PROFILE = "name: mine\nindicators: {runq_p99: {sweet_point: 7ms}}\n"
NAME = "config.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cpus = tmp_path / "cpus"
    cpus.mkdir()
    monkeypatch.setattr("controller.host.facts._CPU_DIR", cpus)
    for name in ("online", "present"):
        (cpus / name).write_text("0-3\n")
    (tmp_path / "state").mkdir()
    (tmp_path / "config.yaml").write_text(GOOD)
    (tmp_path / "mine.yaml").write_text(PROFILE)
    return tmp_path


def source(folder: Path, name: str = "config.yaml") -> ConfigSource:
    return ConfigSource(folder / name, None, folder / "state")


def test_what_has_no_effect_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "config.yaml").write_text(GOOD + "law: {steady_grants: true}\n")
    agent = source(folder)
    agent.start()
    agent.load()
    (line,) = caplog.messages
    assert "law: no effect any more, can be removed: steady_grants" in line


POLICIES = "policies: [{name: canary, set: {replace_profiles: {mine: nginx}}}]\n"


def test_the_digest_changes_with_the_files_and_not_with_policies(folder: Path) -> None:
    (folder / "config.yaml").write_text(GOOD + POLICIES)
    agent = source(folder)
    agent.start()
    digest = agent.digest
    assert digest
    agent.clock.paused = frozenset({"canary"})
    found = agent.adapt()
    agent.take(found)
    assert found.in_force.names == ()
    assert agent.digest == digest
    (folder / "mine.yaml").write_text(PROFILE.replace("7ms", "8ms"))
    found = agent.load()
    assert agent.digest == digest  # not in force yet
    agent.take(found)
    assert agent.digest != digest


def run_until_it_dies(folder: Path) -> None:
    agent = source(folder)
    agent.start()
    agent.keep()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("config.yaml", "mode: enforced\n", "must be 'observe' or 'enforce'"),
        ("config.yaml", "{[", "not YAML"),
        ("config.yaml", None, "no such file"),
        ("mine.yaml", "name: mine\n", "indicators: is missing"),
        ("mine.yaml", None, "no such file"),
    ],
)
def test_after_a_crash_it_goes_on_with_what_was_in_force(
    folder: Path, caplog: pytest.LogCaptureFixture, name: str, text: str | None, words: str
) -> None:
    run_until_it_dies(folder)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    for _ in range(2):  # a second crash changes nothing
        agent = source(folder)
        config = agent.start()
        assert (config.settings.mode, config.settings.reserve_cpus) == (Mode.ENFORCE, 1.0)
        (spec,) = config.settings.profiles["mine"].indicators
        assert (spec.name, spec.sweet_point) == (IndicatorName.RUNQ_P99, 7e6)
        assert words in agent.problem and words in caplog.text
        agent.keep()


def test_a_valid_file_is_what_counts(folder: Path) -> None:
    run_until_it_dies(folder)
    (folder / "config.yaml").write_text(GOOD.replace("1cpu", "2cpu"))
    agent = source(folder)
    assert agent.start().settings.reserve_cpus == 2.0
    assert agent.problem == ""


def test_what_a_reload_refused_is_not_kept(folder: Path) -> None:
    agent = source(folder)
    agent.start()
    (folder / "config.yaml").write_text("mode: enforced\n")
    with pytest.raises(ConfigError):
        agent.load()
    agent.keep()
    assert source(folder).start().settings.mode is Mode.ENFORCE


@pytest.mark.parametrize("state", [True, False])
def test_without_a_crash_the_file_is_refused(folder: Path, state: bool) -> None:
    run_until_it_dies(folder)
    forget_config(folder / "state")
    (folder / "config.yaml").write_text("mode: enforced\n")
    with pytest.raises(ConfigError, match="must be 'observe' or 'enforce'"):
        ConfigSource(folder / "config.yaml", None, folder / "state" if state else None).start()


def test_the_file_is_the_same_by_another_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    agent = ConfigSource(Path("config.yaml"), Mode.OBSERVE, folder / "state")
    agent.start()
    agent.keep()
    (folder / "config.yaml").unlink()
    assert source(folder).start().settings.mode is Mode.ENFORCE
    # That of another file is none.
    with pytest.raises(ConfigError):
        source(folder, "other.yaml").start()


def test_cpus_that_are_gone_do_not_refuse_what_was_in_force(folder: Path) -> None:
    run_until_it_dies(folder)
    for name in ("online", "present"):
        (folder / "cpus" / name).write_text("0\n")
    with pytest.raises(ConfigError, match="less than this host's 1 CPUs"):
        source(folder).load()
    assert source(folder).start().settings.host.cpus == 1


@pytest.mark.parametrize(
    "content",
    ["", "{[", "[]", '{"version": 2}', '{"version": 1, "texts": {"a": 1}, "cpus": 4}'],
)
def test_a_copy_that_cannot_be_used_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    run_until_it_dies(folder)
    (folder / "config.yaml").write_text("mode: enforced\n")
    (folder / "state" / NAME).write_text(content)
    with pytest.raises(ConfigError, match="must be 'observe' or 'enforce'"):
        source(folder).start()
    assert "the kept configuration cannot be used" in caplog.text


def test_a_copy_of_others_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_until_it_dies(folder)
    (folder / "config.yaml").write_text("mode: enforced\n")
    (folder / "state" / NAME).chmod(0o666)
    with pytest.raises(ConfigError):
        source(folder).start()
    assert "others than its owner may write it" in caplog.text


def test_only_root_reads_the_copy(folder: Path) -> None:
    run_until_it_dies(folder)
    assert os.stat(folder / "state" / NAME).st_mode & 0o777 == 0o600


def test_a_full_disk_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = source(folder)
    agent.start()
    (folder / "state").rmdir()
    for _ in range(3):
        agent.keep()
    assert [each.levelno for each in caplog.records] == [logging.WARNING]
    assert "cannot keep the configuration" in caplog.text
