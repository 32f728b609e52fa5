# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint advise`` promises after observing a load, and what came of enforcing it.

A service and two jobs share a CPU: first observed, then enforced, for the same time.
"""

import json
from pathlib import Path
import signal
import time
from typing import Any

import pytest

from controller.cli.main import main
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site, eventually
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh

pytestmark = [pytest.mark.kernel]

PROFILE = """\
name: nginx
indicators:
  runq_p99: {sweet_point: 2ms}
channels: [cpu]
sched_idle: %s
"""
EXTRA = "profiles: [profile.yaml]\n"


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(60, marks=pytest.mark.bench),
        pytest.param(20 * 60, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("sched_idle", ["true", "false"])
def test_promised_and_come(
    cgroup_root: Path,
    cgroup_layout: CgroupLayout,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sched_idle: str,
    seconds: int,
) -> None:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    outweigh(site.root, 100)  # what else runs on this machine must not count
    (site.home / "profile.yaml").write_text(PROFILE % sched_idle)
    site.write(EXTRA, mode="observe")
    jobs = [Load(path, "hog", CPU) for path in site.batch]
    wanted = [Load(site.service, "bursts", CPU), *jobs]
    used_s: list[float] = []
    with loads(wanted, seconds=2 * seconds + 300) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        for mode in ("observe", "enforce"):
            site.write(EXTRA, mode=mode)
            agent.process.send_signal(signal.SIGHUP)
            eventually(mode, 10, lambda mode=mode: agent.status()["mode"] == mode)
            before_ns = running.schedstat(site.root / "batch").oncpu_ns
            time.sleep(seconds)
            used_s.append((running.schedstat(site.root / "batch").oncpu_ns - before_ns) / 1e9)
        assert agent.stop() == 0
    advice = ask(site, capsys)
    (service,) = advice["services"]
    observed, enforced = (service["modes"][mode] for mode in ("observe", "enforce"))
    observed_s, enforced_s = (mode["suffered_ns"] / 1e9 for mode in (observed, enforced))
    with capsys.disabled():
        print(
            f"\nsched-idle {sched_idle}, {seconds} s each\n"
            f"  suffered: {observed_s:.0f} s observed, {enforced_s:.0f} s enforced; promised: at "
            f"most {observed['caused_ns'] / 1e9:.0f} s less\n"
            f"  best-effort: {used_s[0]:.0f} CPU s observed, {used_s[1]:.0f} enforced; promised: "
            f"at most {advice['taken_at_most']['cut_cpu_s']:.0f} less"
        )
    assert enforced_s < observed_s / 2
    assert used_s[0] - used_s[1] <= advice["taken_at_most"]["cut_cpu_s"] + 0.05 * seconds


def ask(site: Site, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["advise", "--json", "--since", "2h", "--data-dir", str(site.home / "data")]) == 0
    return dict(json.loads(capsys.readouterr().out))
