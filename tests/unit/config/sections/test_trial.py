# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section trial: what it says to ``sweetpoint trial``, and what is refused."""

import argparse
from pathlib import Path

import pytest

from controller.cli import trial
from controller.config.load import Config, ConfigError, load
from controller.config.sections.trial import TrialConfig
from controller.core.units import parse_duration, parse_ratio

WORKLOADS = "workloads:\n  - {name: web, cgroup: /web, class: latency-sensitive, profile: nginx}\n"
POLICIES = """\
policies:
  - {name: canary, set: {replace_profiles: {default: nginx}}}
  - {name: pool, nodes: {matchLabels: {pool: b}}, set: {trial: {enabled: true}}}
  - {name: night, set: {mode: enforce}}
"""


def loaded(tmp_path: Path, text: str, labels: str = "") -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(f"{WORKLOADS}{POLICIES}{text}{labels}")
    return load(file, cpus=4)


def test_without_it_no_trial_begins(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").trial == TrialConfig(enabled=False)


def test_its_options_are_those_of_the_command(tmp_path: Path) -> None:
    section = (
        "trial: {enabled: true, policy: canary, for: 2h, block: 90s, washout: 500ms, "
        "paused: 25%, most_harm: 10%}\n"
    )
    found = loaded(tmp_path, section).trial
    assert found.enabled
    parser = argparse.ArgumentParser()
    trial.add_arguments(parser)
    options = parser.parse_args(found.options)
    times = (options.for_ns, options.block_ns, options.washout_ns)
    assert [*map(parse_duration, times)] == [7200 * 10**9, 90 * 10**9, 5 * 10**8]
    assert [*map(parse_ratio, (options.paused, options.most_harm))] == [0.25, 0.1]
    assert (options.policy, options.publish) == ("canary", False)


@pytest.mark.parametrize(
    "section",
    [
        "{for: 720h, most_harm: 0%}",
        "{for: 300h, most_harm: 0.005%, paused: 1%}",
        "{for: 24h, block: 2469.134000001s, washout: 1234.567s}",
    ],
)
def test_the_command_understands_each_value(tmp_path: Path, section: str) -> None:
    found = loaded(tmp_path, f"trial: {section}\n").trial
    parser = argparse.ArgumentParser()
    trial.add_arguments(parser)
    options = parser.parse_args(found.options)
    times = (options.for_ns, options.block_ns, options.washout_ns)
    assert [*map(parse_duration, times)] == [found.total_ns, found.block_ns, found.washout_ns]
    assert parse_ratio(options.most_harm) == pytest.approx(found.most_harm_ratio)


def test_a_policy_says_where(tmp_path: Path) -> None:
    assert not loaded(tmp_path, "").trial.enabled
    assert loaded(tmp_path, "", "node_labels: {pool: b}\n").trial.enabled


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("{paused: 60%}", "trial.paused: must be above 0% and at most 50%"),
        ("{block: 30s}", "trial.block: must be at least twice as long as washout"),
        ("{for: 10m}", "trial.for: has no room for 3 pairs of 240 s"),
        ("{policy: other}", "trial.policy: there is no policy 'other'"),
        ("{policy: pool}", "trial.policy: a policy that sets trial or mode cannot be tried"),
        ("{policy: night}", "trial.policy: a policy that sets trial or mode cannot be tried"),
        ("{publish: true}", "trial.publish: has no effect"),
        ("{enabled: true}\nhttp: off", "trial.enabled: a trial reads the pages of the agent"),
    ],
)
def test_what_is_refused(tmp_path: Path, section: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, f"trial: {section}\n")
    assert problem in str(error.value)
