# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When the agent takes over other policies, by a made-up clock and made-up labels."""

from datetime import datetime
from pathlib import Path

import pytest

from controller.agent.config_source import ConfigSource
from controller.agent.node_labels import LabelOrigin, NodeLabels
from controller.agent.policy_clock import PolicyClock
from controller.config.load import ConfigError
from controller.core.model import Mode
from controller.host.kept_config import forget_config

FLEET = """\
kubernetes: {node: n1}
mode: enforce
reserve: 1cpu
profiles: [mine.yaml]
policies:
  - {name: night, times: [{from: "22:00", until: "06:00"}], set: {reserve: 500mcpu}}
  - {name: canary, nodes: {matchLabels: {pool: canary}}, set: {mode: observe}}
"""
PROFILE = "name: mine\nindicators: {runq_p99: {sweet_point: 7ms}}\n"
NOON = datetime.fromisoformat("2026-11-26T12:00+00:00").timestamp()
HOUR = 3600.0


class Site:
    """A configuration source with a clock in ``now_s``."""

    def __init__(self, folder: Path, state_dir: Path) -> None:
        self.file = folder / "config.yaml"
        self.file.write_text(FLEET)
        self.profile = folder / "mine.yaml"
        self.profile.write_text(PROFILE)
        self.now_s = NOON
        self.labels = NodeLabels(state_dir)
        self.state_dir = state_dir
        self.source = self.make_source()

    def make_source(self) -> ConfigSource:
        clock = PolicyClock(self.labels, lambda: self.now_s)
        return ConfigSource(self.file, None, self.state_dir, clock=clock)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    cpus = tmp_path / "cpus"
    cpus.mkdir()
    monkeypatch.setattr("controller.host.facts._CPU_DIR", cpus)
    for name in ("online", "present"):
        (cpus / name).write_text("0-3\n")
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    return Site(tmp_path, state_dir)


def adapt(source: ConfigSource) -> tuple[str, ...]:
    """Take over what is in force now, as the follower does."""
    config = source.adapt()
    source.take(config)
    return config.in_force.names


def test_it_is_due_once_at_each_change(site: Site) -> None:
    site.labels.take({})
    clock = site.source.clock
    assert site.source.start().in_force.names == ()
    assert not clock.is_due()
    site.now_s = NOON + 10 * HOUR - 0.001
    assert not clock.is_due()
    site.now_s = NOON + 10 * HOUR
    assert clock.is_due()
    assert not clock.is_due()  # it was told once, whether it is applied or not
    assert adapt(site.source) == ("night",)
    assert not clock.is_due()
    site.now_s = NOON + 18 * HOUR
    assert clock.is_due()
    assert adapt(site.source) == ()


def test_a_clock_that_is_set_changes_the_policies(site: Site) -> None:
    site.labels.take({})
    site.source.start()
    clock = site.source.clock
    site.now_s = NOON + 12 * HOUR
    assert clock.is_due()
    assert adapt(site.source) == ("night",)
    site.now_s = NOON  # back
    assert clock.is_due()
    assert adapt(site.source) == ()
    site.now_s = NOON + 365 * 24 * HOUR
    assert not clock.is_due()
    assert clock.found.next_change_s == site.now_s + 10 * HOUR


def test_labels_apply_when_they_are_read(site: Site) -> None:
    config = site.source.start()
    assert site.labels.origin is LabelOrigin.UNKNOWN
    assert config.settings.mode is Mode.OBSERVE
    assert not site.source.clock.is_due()
    site.labels.take({"pool": "prod"})
    assert site.source.clock.is_due()
    config = site.source.adapt()
    assert (config.in_force.names, config.settings.mode) == ((), Mode.ENFORCE)
    site.source.take(config)
    site.labels.take({"pool": "prod", "other": "x"})
    assert not site.source.clock.is_due()
    site.labels.take({"pool": "canary"})
    assert site.source.clock.is_due()
    assert adapt(site.source) == ("canary",)


def test_no_file_is_read_at_a_change(site: Site) -> None:
    site.labels.take({})
    site.source.start()
    site.file.write_text("mode: nonsense\n")
    site.profile.unlink()
    site.now_s = NOON + 11 * HOUR
    assert site.source.clock.is_due()
    assert adapt(site.source) == ("night",)
    # What is kept for a crash are the texts in force.
    site.source.keep()
    again = site.make_source()
    assert again.start().in_force.names == ("night",)
    assert "mode: must be" in again.problem


def test_a_refused_file_does_not_get_into_force_with_a_policy(site: Site) -> None:
    site.labels.take({})
    site.source.start()
    site.file.write_text(FLEET.replace("reserve: 1cpu", "reserve: 2cpu"))
    site.source.load()  # valid, but the host refuses it later: it is not taken
    site.now_s = NOON + 11 * HOUR
    assert site.source.adapt().settings.reserve_cpus == 0.5
    site.now_s = NOON + 19 * HOUR
    assert site.source.adapt().settings.reserve_cpus == 1.0


def test_a_combination_that_is_refused_is_tried_again_after_a_minute(
    site: Site, tmp_path: Path
) -> None:
    site.labels.take({})
    site.source.start()
    for name in ("online", "present"):  # CPUs are gone
        (tmp_path / "cpus" / name).write_text("0\n")
    clock = site.source.clock
    site.now_s = NOON + 11 * HOUR
    assert clock.is_due()
    adapt(site.source)
    site.now_s = NOON + 19 * HOUR
    assert clock.is_due()
    with pytest.raises(ConfigError, match="reserve: must be less than this host's 1 CPUs"):
        site.source.adapt()
    clock.refused()
    assert not clock.is_due()
    site.now_s += 61
    assert clock.is_due()
    assert not clock.is_due()
    clock.refused()
    site.now_s -= 2 * HOUR  # the clock was set
    assert clock.is_due()


def test_after_a_restart_the_labels_are_those_that_were_read_last(site: Site) -> None:
    site.labels.take({"pool": "canary"})
    site.labels = NodeLabels(site.state_dir)
    assert site.labels.origin is LabelOrigin.KEPT
    assert site.make_source().start().in_force.names == ("canary",)
    before = site.labels.labels
    site.labels.take({"pool": "canary"})
    assert str(site.labels.origin) == "read"
    assert before == site.labels.labels
    site.labels.take(None)  # the API server is away
    assert site.labels.labels == {"pool": "canary"}
    forget_config(site.state_dir)


def test_a_paused_policy_is_not_in_force_until_its_pause_ends(site: Site) -> None:
    site.now_s = NOON + 11 * HOUR
    source, clock = site.source, site.source.clock
    clock.labels.take({})
    config = source.start()
    assert config.in_force.names == ("night",)
    assert not clock.is_due()
    clock.paused = frozenset({"night"})
    assert clock.is_due()
    assert not clock.is_due()
    config = source.adapt()
    source.take(config)
    assert config.in_force.names == ()
    assert config.settings.reserve_cpus == 1.0
    assert not clock.is_due()
    assert source.load().in_force.names == ()  # a reload does not end the pause
    clock.paused = frozenset()
    assert clock.is_due()
    config = source.adapt()
    source.take(config)
    assert config.in_force.names == ("night",)
    assert config.settings.reserve_cpus == 0.5
    assert not clock.is_due()
