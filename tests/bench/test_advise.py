# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint advise`` promised after a time of observing, and what came with enforcing.

The load is the same in both modes: a service, and two best-effort tasks on its CPU. The profile is
the shipped one of nginx.
"""

import json
from pathlib import Path
import signal
import time
from typing import Any, NamedTuple

import pytest

from controller.cli.main import main
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, Running, loads
from tests.kernel.overload import CPU, outweigh
from tests.support.waiting import eventually

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

OBSERVE_S = 1200.0
ENFORCE_S = 600.0
# Of the time and of the CPU time: what the two modes may differ by without any control.
SCATTER = 0.05


class Period(NamedTuple):
    """A time in one mode: its part above the sweet point, and the CPUs that batch work used.

    ``gain`` is the largest part in which enforcing can help, as ``advise`` promised.
    """

    suffered: float
    gain: float
    used_cpus: float


def advise(site: Site, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["advise", "--json", "--data-dir", str(site.home / "data")]) == 0
    return dict(json.loads(capsys.readouterr().out))


def spend(running: Running, batch: list[Path], seconds: float) -> float:
    """Return the CPUs that the best-effort tasks use in *seconds*."""
    began_s, before = time.monotonic(), [running.schedstat(each).oncpu_ns for each in batch]
    time.sleep(seconds)
    after = [running.schedstat(each).oncpu_ns for each in batch]
    return (sum(after) - sum(before)) / 1e9 / (time.monotonic() - began_s)


def period(advice: dict[str, Any], mode: str, used_cpus: float) -> Period:
    """Return what *advice* says in *mode* of the channel on which the service suffered longest."""
    whole_ns = advice["observed_ns"][mode]
    found = [each for each in advice["services"] if mode in each["modes"]]
    if not found:
        return Period(0.0, 0.0, used_cpus)
    worst = max(found, key=lambda each: each["modes"][mode]["suffered_ns"])
    gain_ns = worst["gain_at_most_ns"] or 0
    return Period(worst["modes"][mode]["suffered_ns"] / whole_ns, gain_ns / whole_ns, used_cpus)


def test_what_was_promised_and_what_came(
    cgroup_root: Path,
    cgroup_layout: CgroupLayout,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    outweigh(site.root, 100)  # what else runs on this machine must not count
    site.write(mode="observe")
    wanted = [Load(site.service, "bursts", CPU), *(Load(each, "hog", CPU) for each in site.batch)]
    with loads(wanted, seconds=OBSERVE_S + ENFORCE_S + 300) as running, AgentRun(site) as agent:
        agent.ready()
        running.start()
        used_cpus = spend(running, site.batch, OBSERVE_S)
        promise = advise(site, capsys)
        observed = period(promise, "observe", used_cpus)
        cut_cpus = promise["taken_at_most"]["cut_cpu_s"] / (promise["observed_ns"]["observe"] / 1e9)
        site.write(mode="enforce")
        agent.process.send_signal(signal.SIGHUP)
        eventually("sched-idle", site.protected)
        used_cpus = spend(running, site.batch, ENFORCE_S)
        enforced = period(advise(site, capsys), "enforce", used_cpus)
        assert agent.stop() == 0
    print(
        f"\n{OBSERVE_S:.0f} s observed, {ENFORCE_S:.0f} s enforced"
        f"\nabove the sweet point: {observed.suffered:.1%}, promised at least "
        f"{observed.suffered - observed.gain:.1%}, came {enforced.suffered:.1%}"
        f"\nCPUs of batch work: {observed.used_cpus:.3f}, promised at least "
        f"{observed.used_cpus - cut_cpus:.3f}, came {enforced.used_cpus:.3f}"
    )
    assert observed.suffered > 0.5, "the load hurts nothing"
    assert enforced.suffered >= observed.suffered - observed.gain - SCATTER
    assert enforced.suffered <= observed.suffered
    assert enforced.used_cpus >= observed.used_cpus - cut_cpus - SCATTER
