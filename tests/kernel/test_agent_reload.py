# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a reload changes, what it leaves, and facts of the host that change while the agent runs."""

from collections.abc import Iterator
import contextlib
from datetime import UTC, datetime
import logging
from pathlib import Path

import pytest

from actuators.core_scheduling import prctl
from controller.agent.config_source import ConfigSource
from controller.agent.node import Node
from controller.agent.policy_clock import PolicyClock
from controller.agent.reload import Change, ConfigFollower
from controller.core.decision import Action
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.store import Store
from controller.probes.bpf import loader
from tests.kernel.agent import AgentRun, Site
from tests.support.cookie_kernel import CookieKernel
from tests.support.descriptors import no_more_files
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.apart, pytest.mark.thorough]


@contextlib.contextmanager
def follower(site: Site, clock: PolicyClock | None = None) -> Iterator[tuple[ConfigFollower, Node]]:
    """Run a node by the configuration of *site*, without ticks."""
    source = ConfigSource(site.config, None, clock=clock or PolicyClock())
    loaded = source.load()
    node = Node(loaded, Store(loaded.data_dir))
    try:
        yield ConfigFollower(source, loaded, node), node
    finally:
        node.restore()
        node.close()


def is_read(node: Node, path: str) -> bool:
    """Whether the quota of *path* is read: that of a service, if its profile allows a burst."""
    node.refresh_targets()
    node.poll(None, 0)
    read = node.knobs.readings
    return any((each.target.path, each.knob) == (path, Knob.CPU_QUOTA) for each in read)


def test_a_reload_that_fails_late_changes_nothing(site: Site) -> None:
    (site.home / "burst.yaml").write_text(
        "name: nginx\ndescription: test\ncpu_burst: 10ms\n"
        "indicators: {runq_p99: {sweet_point: 7ms}}\n"
    )
    good, service = site.config.read_text(), site.path(site.service)
    with follower(site) as (following, node):
        assert not is_read(node, service)
        before = following.config
        # The file is valid. Only the scan of the workloads finds that no path is that long.
        site.write(
            f"  - {{name: long, cgroup: /{'x' * 5000}, class: best-effort}}\n"
            "profiles: [burst.yaml]\n",
            mode="observe",
        )
        assert not following.reload()
        assert following.problem and following.config is before
        assert not is_read(node, service)
        assert node.knobs.enforcing
        site.config.write_text(good + "profiles: [burst.yaml]\n")
        assert following.reload()
        assert not following.problem
        assert is_read(node, service)


def test_a_policy_applies_at_its_time_and_not_the_file_of_that_time(site: Site) -> None:
    night = "times: [{from: '22:00', until: '06:00'}], set: {mode: observe, reserve: 500mcpu}"
    site.write(f"policies: [{{name: night, {night}}}]\n")
    now_s = [datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp()]
    with follower(site, PolicyClock(wall_clock=lambda: now_s[0])) as (following, node):
        assert node.knobs.enforcing
        assert not following.has_other_policies()
        site.config.write_text("mode: nonsense\n")
        assert not following.reload()
        problem = following.problem
        now_s[0] += 10 * 3600
        assert following.has_other_policies()
        assert following.adapt()
        assert not following.has_other_policies()
        assert not node.knobs.enforcing
        assert following.config.settings.reserve_cpus == 0.5
        assert following.problem == problem  # the file is as wrong as before
        now_s[0] += 8 * 3600
        assert following.has_other_policies()
        assert following.adapt()
        assert node.knobs.enforcing
        assert following.config.settings.reserve_cpus == 0.1


def test_a_restore_that_the_kernel_refused_is_repeated_in_observe_mode(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    if site.layout.version != "v1":
        pytest.skip("only v1 refuses a quota above that of the parent")
    monkeypatch.setattr("controller.agent.knob_writer._RELEASE_AGAIN_NS", 0)
    job = site.batch[0]
    quota, above = (path / "cpu.cfs_quota_us" for path in (job, job.parent))
    quota.write_text("80000")
    target = Target(TargetKind.CGROUP, site.layout.hierarchy, job.stat().st_ino, site.path(job))
    squeeze = Action(
        target=target,
        knob=Knob.CPU_QUOTA,
        previous=KnobValue("80000 100000 0"),
        value=KnobValue("20000 100000 0"),
        reason="test",
    )
    with follower(site) as (following, node):
        (outcome,) = node.knobs._executor.execute([squeeze], now_ns=0)
        assert outcome.failure is None
        above.write_text("50000")
        site.write(mode="observe")
        assert following.reload()
        assert quota.read_text() == "20000\n"
        above.write_text("-1")
        node.refresh_targets()
        assert quota.read_text() == "80000\n"
        assert not node.knobs._executor.held()


def test_a_reload_applies_other_classes_for_disks(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    classes = "io: {classes: {gold: {weight: 800}, bulk: {weight: 50}}}\n"
    with follower(site) as (following, _):
        site.write(classes)
        assert following.reload()
        assert [*following.config.settings.io_classes] == ["gold", "bulk"]
        site.write(classes.replace("gold: {weight: 800}, ", ""))
        assert following.reload()
        assert [*following.config.settings.io_classes] == ["bulk"]
        assert "restart" not in caplog.text


def test_the_log_of_a_reload_says_what_it_did_not_change(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with follower(site) as (following, _):
        site.write("eviction: {per_hour: 7, cool_down: 90s}\n")
        assert following.reload()
        assert following.config.settings.eviction == (7, 90 * 10**9)
        assert "restart" not in caplog.text
        site.write("eviction: {per_hour: 8, standalone: kill}\n")
        assert following.reload()
        assert following.config.settings.eviction.per_hour == 8
        assert following.config.eviction.standalone == "off"
        text = "eviction changes only with a restart, except per_hour and cool_down of evictions"
        assert text in caplog.text
        caplog.clear()
        # The limits of a section that is not in force are not in force either.
        site.write("kubernetes: {node: n, kubeconfig: /no, eviction: {per_hour: 9}}\n")
        assert following.reload()
        assert "kubernetes changes only with a restart\n" in caplog.text
        assert following.config.kubernetes is None
        assert following.config.settings.eviction.per_hour == 8


def test_the_probe_of_cookies_is_compiled_before_the_first_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prctl, "_prctl", CookieKernel().prctl)
    monkeypatch.setattr(loader, "_prepared", {})
    site.write(mode="observe")
    with follower(site) as (following, node):
        assert not loader._prepared
        site.write("core_scheduling: {mode: off}\n")
        assert following.reload()
        assert not loader._prepared
        site.write("core_scheduling: {mode: auto}\n")
        assert following.reload()
        monkeypatch.setattr(loader, "compile_source", None)
        monkeypatch.setattr(loader, "_cache", None)
        node.sampler.load_moves()
        assert node.sampler.moves() is not None


def test_a_cpu_that_goes_offline_lowers_the_ceiling_without_a_reload(site: Site) -> None:
    online = site.home / "online"
    online.write_text("0-7\n")
    bind = f"mount --bind {online} /sys/devices/system/cpu/online"
    with AgentRun(site, "--mode", "observe", without=bind) as agent:
        agent.ready()
        before = eventually("a ceiling", lambda: agent.status()["plan"]["quota_ceiling_cpus"])
        online.write_text("0-3\n")
        eventually(
            "a lower ceiling",
            lambda: agent.status()["plan"]["quota_ceiling_cpus"] < min(4, before),
        )
        assert agent.stop() == 0
    assert "this host had 8 CPUs before, 4 now" in agent.output


def test_only_a_change_of_the_cpus_is_a_change(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with follower(site) as (following, _):
        assert following.refresh_cpus() is Change.NOTHING
        (tmp_path / "online").write_text("0-5,9\n")
        monkeypatch.setattr("controller.host.facts._CPU_DIR", tmp_path)
        assert following.refresh_cpus() is Change.SETTINGS
        assert following.config.settings.host.cpus == 7
        assert following.refresh_cpus() is Change.NOTHING


def test_a_scan_that_the_host_refuses_leaves_the_workloads_as_they_were(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with follower(site) as (following, node):
        before = node.workloads
        with no_more_files():
            assert following.poll(10**9) is Change.NOTHING
        assert node.workloads == before
        assert "Too many open files" in caplog.text and "keeping those" in caplog.text
        (site.root / "batch" / "late").mkdir()
        assert following.poll(20 * 10**9) is Change.WORKLOADS
        assert len(node.workloads) == len(before) + 1
