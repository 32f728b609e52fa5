# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How long the candidate of a trial is in force, by a made-up clock."""

from pathlib import Path

import pytest

from controller.agent.candidates import Candidates
from controller.agent.config_source import ConfigSource
from controller.agent.policy_clock import PolicyClock
from controller.config.load import ConfigError
from controller.host.candidate_file import (
    CandidateEntry,
    candidate_file,
    remove_candidate,
    write_candidate,
)

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
TEXT = "name: mine\nset: {reserve: 0cpu}\n"
FILE = """\
mode: enforce
reserve: 200mcpu
workloads: [{name: web, cgroup: /web, class: latency-sensitive, profile: nginx}]
"""


class Bench:
    """An agent's candidates and its configuration, with a clock that the test sets."""

    def __init__(self, state_dir: Path, file: Path) -> None:
        self.state_dir, self.file = state_dir, file
        self.file.write_text(FILE)
        self.now_s = NOW_S
        self.set_s = 0.0  # by how much the wall clock was set
        self.start()

    def start(self) -> None:
        """Start the agent, again."""
        self.candidates = Candidates(
            self.state_dir, lambda: self.now_s, lambda: self.now_s - self.set_s
        )
        self.clock = PolicyClock(wall_clock=lambda: self.now_s)
        self.source = ConfigSource(self.file, None, clock=self.clock)
        self.source.take(self.source.load())

    def write(self, until_s: float, text: str = TEXT) -> None:
        write_candidate(self.state_dir, CandidateEntry(text, "mine.yaml", until_s), self.now_s)

    @property
    def name(self) -> str | None:
        found = self.candidates.poll()
        return None if found is None else found.name

    def follow(self) -> tuple[str, ...] | None:
        """Apply other policies as the agent does; ``None``: there is nothing to apply."""
        self.clock.candidate = self.candidates.poll()
        if not self.clock.is_due():
            return None
        config = self.source.adapt()
        self.source.take(config)
        assert (config.settings.reserve_cpus == 0.0) is ("mine" in config.in_force.names)
        return config.in_force.names


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    return Bench(state_dir, tmp_path / "config.yaml")


def test_it_is_in_force_until_its_time(bench: Bench) -> None:
    assert bench.follow() is None
    bench.write(NOW_S + 60)
    assert bench.follow() == ("mine",)
    assert bench.follow() is None
    bench.now_s += 59.9
    assert bench.follow() is None
    bench.now_s += 0.2
    assert bench.follow() == ()
    assert bench.follow() is None


def test_it_ends_with_its_file(bench: Bench) -> None:
    bench.write(NOW_S + 60)
    assert bench.follow() == ("mine",)
    remove_candidate(bench.state_dir, NOW_S)
    assert bench.follow() == ()


def test_it_ends_with_the_agent(bench: Bench) -> None:
    bench.write(NOW_S + 60)
    assert bench.name == "mine"
    bench.start()
    assert bench.name is None
    assert not candidate_file(bench.state_dir).exists()
    bench.write(NOW_S + 60)
    assert bench.name == "mine"


def test_what_is_left_over_and_cannot_be_removed_is_left_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write(NOW_S + 60)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    bench.start()
    assert bench.name is None


def test_a_clock_that_is_set_does_not_prolong_it(bench: Bench) -> None:
    bench.write(NOW_S + 60)
    assert bench.name == "mine"
    bench.now_s -= 3600
    bench.set_s -= 3600
    bench.now_s += 61
    assert bench.name is None


def test_an_end_that_is_written_anew_counts(bench: Bench) -> None:
    bench.write(NOW_S + 60)
    assert bench.follow() == ("mine",)
    bench.now_s += 50
    bench.write(bench.now_s + 60)
    assert bench.follow() == ("mine",)  # the page has to say the other end
    bench.now_s += 59
    assert bench.follow() is None
    bench.now_s += 2
    assert bench.follow() == ()


@pytest.mark.parametrize("text", ["name: mine\nset: {tick: 1s}\n", "x", "name: [\n"])
def test_one_that_is_no_policy_is_told_once(
    text: str, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(NOW_S + 60)
    assert bench.name == "mine"
    bench.write(NOW_S + 60, text)
    assert bench.name is None
    assert bench.name is None
    assert caplog.text.count("candidate of a trial: ") == 1


def test_one_that_this_node_refuses_changes_nothing_and_ends(bench: Bench) -> None:
    bench.write(NOW_S + 60, "name: mine\nset: {reserve: 1000cpu}\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml:2: set.reserve"):
        bench.follow()
    bench.clock.refused()
    assert bench.follow() is None
    bench.now_s += 61
    assert bench.follow() == ()


def test_an_end_that_is_refused_is_tried_again(bench: Bench) -> None:
    bench.write(NOW_S + 60)
    assert bench.follow() == ("mine",)
    bench.now_s += 60.5
    bench.clock.candidate = bench.candidates.poll()
    assert bench.clock.is_due()
    bench.clock.refused()  # the host was short of something
    assert bench.follow() is None
    bench.now_s += 61
    assert bench.follow() == ()


def test_a_reload_checks_the_file_without_it_and_it_comes_back(bench: Bench) -> None:
    bench.write(NOW_S + 60)
    assert bench.follow() == ("mine",)
    digest = bench.source.digest
    # With this file the candidate would be refused.
    policies = "policies: [{name: mine, set: {reserve: 300mcpu}}]\n"
    bench.file.write_text(FILE + policies)
    config = bench.source.load()
    assert (config.in_force.names, config.settings.reserve_cpus) == (("mine",), 0.3)
    bench.file.write_text(FILE)
    config = bench.source.load()
    bench.source.take(config)
    assert config.in_force.names == ()
    assert bench.follow() == ("mine",)
    assert bench.source.digest == digest


def test_another_policy_that_begins_keeps_it_in_force(bench: Bench) -> None:
    bench.file.write_text(FILE + "policies: [{name: late, times: [{from: '08:01'}], "
                          "set: {memory: {guard: false}}}]\n")  # fmt: skip
    bench.start()
    bench.write(NOW_S + 600)
    assert bench.follow() == ("mine",)
    bench.now_s += 30
    bench.clock.paused = frozenset({"other"})
    assert bench.follow() is None  # it has looked anew, and the page still has the candidate
    found = bench.clock.found
    assert found.candidate is bench.candidates.poll()
    assert [each.key for each in found.changes["mine"]] == ["reserve"]
    bench.now_s += 31
    assert bench.follow() == ("late", "mine")
    bench.now_s += 600
    assert bench.follow() == ("late",)
