# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint trial`` with a running agent: it pauses in turns, and any end of it is harmless."""

from collections.abc import Iterator
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from controller.host.candidate_file import candidate_file
from controller.host.trial_record import Record, read_record
from controller.trial.blocks import Arm, load
from tests.kernel.agent import AgentRun, Site
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.kernel, pytest.mark.apart]

PAIRS = 3
# With this seed the first block is a paused one.
SEED = ("--seed", "0")
SHORT = ("--for", "18s", "--block", "3s", "--washout", "1s", *SEED)


@pytest.fixture
def agent(site: Site) -> Iterator[AgentRun]:
    site.write("tick: 100ms\n")
    with AgentRun(site) as run:
        yield run.ready().enforcing()


def begin(site: Site, *options: str) -> subprocess.Popen[str]:
    """Start a trial of the agent of *site*."""
    words = ("trial", "--config", str(site.config), *options)
    command = [sys.executable, "-m", "controller.cli.main", *words]
    return subprocess.Popen(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_obey,
    )


def _obey() -> None:
    """Obey signals that programs in the background of a shell ignore."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def finish(trial: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = trial.communicate(timeout=DEADLINE_S)
    return trial.returncode, out, err


def files(site: Site) -> list[Path]:
    return [*(site.home / "data" / "trials").glob("*.jsonl")]


def test_it_pauses_in_turns_and_says_what_it_found(site: Site, agent: AgentRun) -> None:
    before = site.knobs()
    trial = begin(site, *SHORT, "--json")
    eventually("a pause", lambda: not site.protected())
    eventually("the agent enforces again", site.protected)
    code, out, err = finish(trial)
    assert code == 0, err
    eventually("no pause", lambda: agent.status()["pauses"] == [])
    eventually("the knobs of before", lambda: site.knobs() == before)
    (file,) = files(site)
    node, design, pairs, left_out, changes = load(file)
    assert (node, design.pairs, len(pairs)) == (os.uname().nodename, PAIRS, PAIRS)
    assert (left_out, changes) == (0, ())
    assert all({block.arm for block in pair} == {*Arm} for pair in pairs)
    found = json.loads(out)
    assert found["ended"] == ""
    assert "web" in {each["name"] for each in found["findings"]}
    assert f"pair {PAIRS} of {PAIRS}: web above its sweet point" in err
    assert "what it can show is not known" in err  # the agent is young
    again = begin(site, "--read", str(file), "--json")
    code, out, _ = finish(again)
    assert code == 0 and json.loads(out) == found


def run(site: Site, *options: str, text: str = "") -> tuple[int, str, str]:
    """Run a command about the trial in the background, with *text* as its input."""
    words = ("trial", "--config", str(site.config), *options)
    done = subprocess.run(
        [sys.executable, "-m", "controller.cli.main", *words],
        input=text,
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_one_in_the_background_goes_on_and_ends_when_told(site: Site, agent: AgentRun) -> None:
    before = site.knobs()
    long = ("--for", "6h", "--block", "1h", *SEED, "--background", "--json")
    try:
        code, out, err = run(site, *long)
        assert code == 0, err
        assert json.loads(out) == {"node": os.uname().nodename, "seed": 0, "pairs": 3}
        eventually("a pause", lambda: not site.protected())
        code, out, _ = run(site, "--latest", "--json")
        how = json.loads(out)["trial"]
        assert (code, how["state"], how["pairs"]) == (0, "running", 0)
        code, _, err = run(site, *long)
        assert code == 2 and "a trial runs in the background" in err
    finally:
        code, out, err = run(site, "--stop")
    assert (code, out) == (0, "ended: the trial in the background\n"), err
    eventually("the knobs of before", lambda: site.protected() and site.knobs() == before)
    _, out, _ = run(site, "--latest", "--json")
    found = json.loads(out)
    assert (found["trial"]["state"], found["ended"]) == ("ended", "interrupted")


def test_the_agent_begins_one_and_ends_it_with_a_reload(site: Site) -> None:
    site.write("tick: 100ms\ntrial: {enabled: true, for: 6h, block: 1h, washout: 1s}\n")
    with AgentRun(site) as agent:
        agent.ready().enforcing()

        def record() -> Record | None:
            return read_record(site.home / "data")

        eventually("a trial", record)
        code, _, err = run(site, *SHORT, "--background")
        assert code == 2 and "a trial runs in the background" in err
        site.write("tick: 100ms\n")
        agent.process.send_signal(signal.SIGHUP)

        def has_ended() -> bool:
            found = record()
            return found is not None and found.ended == "interrupted"

        eventually("its end", has_ended)
        eventually("the agent enforces", site.protected)
        assert agent.status()["pauses"] == []
        assert agent.stop() == 0


def test_one_in_the_background_against_a_file_of_another_host(site: Site) -> None:
    site.write("tick: 100ms\n")
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        try:
            code, _, err = run(site, *SHORT, "--background", "--against", "-", text=OTHER)
            assert code == 0, err
            eventually("the candidate", lambda: profile_of_web(agent) == "redis")

            def ended() -> dict[str, Any] | None:
                _, out, _ = run(site, "--latest", "--json")
                found: dict[str, Any] = json.loads(out)
                return found if found["trial"]["state"] == "ended" else None

            found = eventually("its end", ended)
        finally:
            run(site, "--stop")
        assert (found["ended"], found["trial"]["pairs"]) == ("", PAIRS)
        assert found["trial"]["compared"] and found["arms"]["enforce"] == "with other"
        eventually("the profile of before", lambda: profile_of_web(agent) == "nginx")


def policies(agent: AgentRun) -> list[str]:
    status = agent.status()["policies"]
    return [each["policy"] for each in status["in_force"]]


CANDIDATE = (
    "tick: 100ms\nprofiles: [fast.yaml]\n"
    "policies: [{name: canary, set: {replace_profiles: {nginx: fast}}}]\n"
)


def profile_of_web(agent: AgentRun) -> str:
    (web,) = (each for each in agent.status()["workloads"] if each["name"] == "web")
    return str(web["profile"])


def test_a_candidate_and_the_profile_in_force_take_turns(site: Site) -> None:
    (site.home / "fast.yaml").write_text("name: fast\nindicators: {runq_p99: {sweet_point: 3ms}}\n")
    site.write(CANDIDATE)
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        assert profile_of_web(agent) == "fast"
        code, _, err = finish(begin(site, *SHORT, "--policy", "other"))
        assert (code, files(site)) == (1, [])
        assert "policy other is not in force on this node" in err
        trial = begin(site, *SHORT, "--policy", "canary", "--json")
        eventually("the profile of before", lambda: profile_of_web(agent) == "nginx")
        eventually("no policy", lambda: policies(agent) == [])
        eventually("the candidate again", lambda: profile_of_web(agent) == "fast")
        code, out, err = finish(trial)
        assert code == 0, err
        eventually("no pause", lambda: agent.status()["pauses"] == [])
        eventually("the policy", lambda: policies(agent) == ["canary"])
        (file,) = files(site)
        _, design, pairs, _, changes = load(file)
        assert (design.policy, len(pairs)) == ("canary", PAIRS)
        assert changes == (("replace_profiles.nginx", "fast", "nginx"),)
        firsts = [min(pair, key=lambda block: block.began_s).arm for pair in pairs]
        assert firsts == [first for first, _ in design.order()]
        assert json.loads(out)["arms"] == {"enforce": "with canary", "pause": "without canary"}
        against = site.home / "other.yaml"
        against.write_text(OTHER)
        check_a_candidate_of_a_file(site, agent, against)
        check_a_candidate_that_is_left_over(site, agent, against)
        check_a_restart_of_the_agent(site, agent, against)


OTHER = "name: other\nset: {replace_profiles: {nginx: redis}}\n"


def check_a_candidate_of_a_file(site: Site, agent: AgentRun, against: Path) -> None:
    """Check a trial of *against*, where the policy canary sets another profile."""
    digest = agent.status()["config_digest"]
    pairs = Path(f"{against}.jsonl")
    trial = begin(site, *SHORT, "--against", str(against), "--json", "--blocks", str(pairs))
    eventually("the candidate", lambda: profile_of_web(agent) == "redis")
    assert policies(agent) == ["canary", "other"]
    assert agent.status()["config_digest"] == digest
    against.write_text("set: {}\n")  # what was read at the start counts
    eventually("the profile of before", lambda: profile_of_web(agent) == "fast")
    assert policies(agent) == ["canary"]
    eventually("the candidate again", lambda: profile_of_web(agent) == "redis")
    trial.send_signal(signal.SIGTERM)
    code, out, err = finish(trial)
    assert code == 130, err
    found = json.loads(out)
    assert found["changes"] == [
        {"key": "replace_profiles.nginx", "value": "redis", "without": "fast"}
    ]
    assert found["arms"] == {"enforce": "with other", "pause": "without other"}
    eventually("the profile of before", lambda: profile_of_web(agent) == "fast")
    assert policies(agent) == ["canary"]
    code, _, err = finish(begin(site, *SHORT, "--against", str(against)))
    assert code == 2 and "name: is missing" in err
    against.write_text(OTHER)


def check_a_candidate_that_is_left_over(site: Site, agent: AgentRun, against: Path) -> None:
    """Check that an operator ends at once what a killed trial left."""
    pairs = f"{against}.2.jsonl"
    trial = begin(site, *SHORT, "--against", str(against), "--blocks", pairs)
    eventually("the candidate", lambda: profile_of_web(agent) == "redis")
    trial.kill()
    finish(trial)
    code, _, err = finish(begin(site, *SHORT, "--policy", "canary"))
    assert code == 1 and "another trial has a candidate in force" in err
    command = (sys.executable, "-m", "controller.cli.main", "resume", "--config", str(site.config))
    done = subprocess.run(command, check=True, text=True, capture_output=True)
    assert done.stdout.startswith("ended: the candidate of a trial")
    eventually("the profile of before", lambda: profile_of_web(agent) == "fast")


def check_a_restart_of_the_agent(site: Site, agent: AgentRun, against: Path) -> None:
    """Check that a candidate, which may be why an agent died, does not outlive it."""
    long = ("--for", "6h", "--block", "1h", "--seed", "1", "--blocks", f"{against}.3.jsonl")
    trial = begin(site, *long, "--against", str(against))
    eventually("the candidate", lambda: profile_of_web(agent) == "redis")
    time.sleep(2)  # if the trial has not seen it yet, it waits for it half a minute
    agent.kill_agent()
    code, out, err = finish(trial)
    assert code == 1, err
    assert "ended before its time: " in out
    agent.ready()
    assert profile_of_web(agent) == "fast"
    assert policies(agent) == ["canary"]
    assert not candidate_file(site.home / "state").exists()


@pytest.mark.thorough
def test_a_reload_with_another_candidate_begins_the_pairs_anew(site: Site) -> None:
    candidate = "name: fast\nindicators: {{runq_p99: {{sweet_point: {}ms}}}}\n"
    (site.home / "fast.yaml").write_text(candidate.format(3))
    site.write(CANDIDATE)
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        digest = agent.status()["config_digest"]
        trial = begin(
            site, "--for", "1h", "--block", "2s", "--washout", "1s", "--policy", "canary", "--json"
        )
        (file,) = eventually(
            "the head of the file", lambda: [each for each in files(site) if each.stat().st_size]
        )
        eventually("a pair", lambda: load(file).pairs)
        assert agent.status()["config_digest"] == digest  # whichever policies are in force
        (site.home / "fast.yaml").write_text(candidate.format(4))
        agent.process.send_signal(signal.SIGHUP)
        eventually("the reload", lambda: agent.status()["config_digest"] != digest)
        eventually("a pair of the other candidate", lambda: load(file).left_out)
        trial.send_signal(signal.SIGTERM)
        code, out, err = finish(trial)
        assert code == 130, err
        assert json.loads(out)["left_out"] == load(file).left_out
        eventually("the policy", lambda: policies(agent) == ["canary"])


def test_after_a_kill_the_candidate_comes_back_by_itself(site: Site) -> None:
    (site.home / "fast.yaml").write_text("name: fast\nindicators: {runq_p99: {sweet_point: 3ms}}\n")
    site.write(CANDIDATE)
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        trial = begin(site, *SHORT, "--policy", "canary")
        eventually("no policy", lambda: policies(agent) == [])
        trial.kill()
        finish(trial)
        eventually("the policy", lambda: policies(agent) == ["canary"])
        assert profile_of_web(agent) == "fast"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_its_pause(
    site: Site, agent: AgentRun, signum: signal.Signals
) -> None:
    trial = begin(site, "--for", "1h", "--block", "10m", *SEED)
    eventually("a pause", lambda: not site.protected())
    trial.send_signal(signum)
    code, out, _ = finish(trial)
    assert code == 130
    assert "ended before its time: interrupted" in out
    assert "no pair was finished" in out
    eventually("the agent enforces again", site.protected)
    eventually("no pause", lambda: agent.status()["pauses"] == [])


def test_after_a_kill_the_pause_ends_by_itself(site: Site, agent: AgentRun) -> None:
    trial = begin(site, *SHORT)
    eventually("a pause", lambda: not site.protected())
    trial.kill()
    finish(trial)
    assert not site.protected()
    eventually("the agent enforces again", site.protected)


def test_an_agent_that_does_not_enforce(site: Site) -> None:
    site.write(mode="observe")
    with AgentRun(site) as agent:
        agent.ready()
        code, _, err = finish(begin(site, *SHORT))
    assert code == 1
    assert "the agent is in mode observe: a trial needs one that enforces" in err
    code, _, err = finish(begin(site, *SHORT))
    assert code == 1 and "does the agent run?" in err
    assert files(site) == []
