# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint run`` from start to end on real cgroups: protection, restore, reload, errors."""

import os
import signal
import socket
import time

import pytest

from controller.agent.recording import read, replay
from controller.core.model import Knob
from tests.kernel import conftest as fixtures
from tests.kernel.agent import AgentRun, Site
from tests.kernel.explaining import squeezed
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

# Many ticks take no long time.
OFTEN = "tick: 50ms\n"
# Also for the guest, which repeats a test of this module.
site = fixtures.site


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.thorough)]
)
def test_it_protects_the_service_and_restores_on_a_stop_signal(
    site: Site, number: signal.Signals
) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        changed = {name for name, text in site.knobs().items() if text != before[name]}
        assert changed and all(name.startswith("batch/") for name in changed)
        assert agent.stop(number) == 0
    assert site.knobs() == before


@pytest.mark.thorough
def test_observe_mode_plans_and_writes_nothing(site: Site) -> None:
    site.write(OFTEN)
    before = site.knobs()
    with AgentRun(site, "--mode", "observe") as agent:
        agent.ready()
        agent.watch(5)
        assert agent.status()["mode"] == "observe"
        assert agent.status()["plan"]["loops"]
        assert site.knobs() == before
        assert agent.stop() == 0
    assert not list((site.home / "state" / "journal").glob("*.json"))


def test_a_hog_is_squeezed_and_the_recording_replays(site: Site) -> None:
    site.tighten()
    recording = site.home / "ticks.jsonl.gz"
    outweigh(site.root, 200)
    outweigh(site.root / "batch")
    wanted = [Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)]
    with loads(wanted) as running, AgentRun(site, "--record", str(recording)) as agent:
        agent.ready()
        running.start()
        squeezed(agent)
        # The quota may have been released since, and be set again.
        applied = "sweetpoint_quota_applied_cpus"
        eventually(
            "a quota in the metrics",
            lambda: any(Knob.CPU_QUOTA in labels for labels in agent.series(applied)),
        )
        # What is in force is told in the tick after the write, as it was read back.
        eventually(
            "the decision",
            lambda: any("best-effort quota" in d["text"] for d in agent.status()["decisions"]),
        )
        loop = agent.status()["plan"]["loops"][0]
        assert (loop["service"], loop["indicator"]) == ("web", "runq_p99")
        assert agent.stop() == 0
    assert "best-effort quota" in agent.output
    plans = [(entry.plan, plan) for entry, plan in replay(read(recording))]
    assert any(recorded.actions for recorded, _ in plans)
    assert all(recorded == again for recorded, again in plans)


@pytest.mark.thorough
def test_after_sigkill_knobs_are_restored_and_the_agent_restarts(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        site.write(mode="observe")  # for the next agent, so that the knobs stay restored
        agent.kill_agent()
        eventually("restored", lambda: site.knobs() == before)
        site.write()
        agent.process.send_signal(signal.SIGHUP)
        agent.enforcing()
        assert agent.stop() == 0
    assert site.knobs() == before


@pytest.mark.timed
def test_after_sigkill_knobs_are_restored_in_two_seconds(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        started_s = time.monotonic()
        os.kill(agent.pids()[1], signal.SIGKILL)
        eventually("restored", lambda: site.knobs() == before)
        assert time.monotonic() - started_s < 2.0


@pytest.mark.thorough
def test_after_sigkill_of_both_the_next_start_restores_first(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing().kill_both()
    assert site.knobs() != before
    with AgentRun(site, "--mode", "observe") as agent:
        agent.ready()
        assert site.knobs() == before
        assert agent.stop() == 0


@pytest.mark.thorough
def test_a_suspended_agent_is_killed_and_its_knobs_restored(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        site.write(mode="observe")  # for the next agent, so that the knobs stay restored
        os.kill(agent.pids()[1], signal.SIGSTOP)
        eventually("the guardian to act", lambda: site.knobs() == before)
        agent.ready()
        assert agent.stop() == 0
    assert "silent" in agent.output


@pytest.mark.thorough
def test_workloads_start_and_end(site: Site) -> None:
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        site.batch[0].rmdir()
        late = site.root / "batch" / "late"
        late.mkdir()
        wanted = {"web", "batch:two", "batch:late"}
        eventually(
            "the new workload",
            lambda: {w["name"] for w in agent.status()["workloads"]} == wanted,
        )
        assert site.idle(site.root / "batch")
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    assert not site.idle(site.root / "batch")


@pytest.mark.thorough
def test_the_protection_stays_while_a_service_restarts(site: Site) -> None:
    site.write(OFTEN)
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        site.service.rmdir()
        eventually(
            "the removal of the service",
            lambda: "web" not in {w["name"] for w in agent.status()["workloads"]},
        )
        agent.watch(5)
        assert site.protected()
        assert agent.stop() == 0


@pytest.mark.thorough
def test_a_reload_with_an_error_changes_nothing(site: Site) -> None:
    good = site.config.read_text()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        for garbage, words in (
            ("{[", "config.yaml:"),
            ("tick: 5\n", "tick"),
            ("tack: 200ms\n", "unknown key (did you mean tick?)"),
        ):
            site.config.write_text(good + garbage)
            agent.process.send_signal(signal.SIGHUP)
            problem = eventually("the refusal", lambda: agent.status()["config_problem"])
            assert words in problem
            agent.watch(1)
            assert site.protected()
            site.config.write_text(good)
            agent.process.send_signal(signal.SIGHUP)
            eventually("the acceptance", lambda: not agent.status()["config_problem"])
        assert agent.stop() == 0


def test_a_reload_changes_the_sweet_point_and_the_mode(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        site.write("profiles: [other.yaml]\n", mode="observe")
        (site.home / "other.yaml").write_text(
            "name: nginx\ndescription: test\nindicators:\n  runq_p99: {sweet_point: 7ms}\n"
        )
        agent.process.send_signal(signal.SIGHUP)
        eventually("observe", lambda: agent.status()["mode"] == "observe")
        eventually("restored", lambda: site.knobs() == before)
        loops = eventually("a loop", lambda: agent.status()["plan"]["loops"])
        assert loops[0]["sweet_point"] == 7e6
        assert agent.stop() == 0


@pytest.mark.thorough
def test_knobs_of_a_workload_that_is_no_longer_named_are_restored(site: Site) -> None:
    before = site.knobs()
    with loads([Load(site.batch[1], "idle")]), AgentRun(site) as agent:
        agent.ready().enforcing()
        text = site.config.read_text().replace("/batch/*", "/batch/one*")
        site.config.write_text(text)
        agent.process.send_signal(signal.SIGHUP)
        # batch/two is no workload now but has processes: idle moves to batch/one alone.
        eventually("batch/one to be idle", lambda: site.idle(site.batch[0]))
        eventually("batch to be restored", lambda: not site.idle(site.root / "batch"))
        assert not site.idle(site.batch[1])
        assert agent.stop() == 0
    assert site.knobs() == before


@pytest.mark.thorough
def test_a_second_agent_is_refused(site: Site) -> None:
    with AgentRun(site) as first:
        first.ready()
        with AgentRun(site) as second:
            assert second.wait() == 1
        assert "already runs on this host" in second.output
        assert first.stop() == 0


@pytest.mark.thorough
def test_a_taken_port_does_not_keep_the_agent_from_protecting(site: Site) -> None:
    before = site.knobs()
    with socket.create_server(("127.0.0.1", site.port)) as taken, AgentRun(site) as agent:
        agent.enforcing()
        site.write(mode="observe")  # for the next agent, so that the knobs stay restored
        agent.kill_agent()  # a restart needs the port no more than a start
        eventually("restored", lambda: site.knobs() == before)
        site.write()
        agent.process.send_signal(signal.SIGHUP)
        agent.enforcing()
        taken.close()
        agent.ready()
        assert agent.status()["http_listen_failures"] > 0
        assert agent.stop() == 0
    assert "cannot listen" in agent.output and "starting it again" in agent.output


@pytest.mark.thorough
def test_what_the_host_refuses_is_no_wrong_configuration(site: Site) -> None:
    with AgentRun(site, "--no-guardian", "--record", str(site.home / "no/where")) as agent:
        assert agent.wait() == 1
    assert "there is no such file or directory" in agent.output


@pytest.mark.thorough
def test_a_wrong_workload_is_named_and_nothing_is_touched(site: Site) -> None:
    before = site.knobs()
    site.write(
        f"  - {{name: other, cgroup: {site.path(site.batch[0])}, class: latency-sensitive}}\n"
    )
    with AgentRun(site) as agent:
        assert agent.wait() == 2
    assert "config.yaml:8" in agent.output and "already belongs to" in agent.output
    assert site.knobs() == before


@pytest.mark.thorough
def test_a_truncated_journal_record_is_named_and_set_aside(site: Site) -> None:
    journal = site.home / "state" / "journal"
    journal.mkdir(parents=True, mode=0o700)
    (journal / "torn.json").write_text('{"version": 1, "boot')
    with AgentRun(site, "--once") as agent:
        assert agent.wait() == 1
    assert "torn.json" in agent.output
    assert [file.name for file in journal.iterdir()] == ["torn.bad"]


@pytest.mark.thorough
def test_once_plans_and_exits(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site, "--once") as agent:
        assert agent.wait() == 0
    assert site.knobs() == before
