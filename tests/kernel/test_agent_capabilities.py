# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent works with the chart's list of capabilities instead of a privileged container."""

import os
from pathlib import Path
import shutil
import subprocess

import pytest

from tests.deploy.chart import find, render
from tests.kernel.agent import AgentRun, Site
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv"),
]


def with_capabilities(names: list[str]) -> str:
    """Return the command that starts the agent with these capabilities only."""
    given = "".join(f",+{name.lower()}" for name in names)
    return f'exec setpriv --bounding-set=-all{given} "$@"'


def bounding_set(pid: int) -> int:
    """Return the capability bounding set of a process, as a mask."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("CapBnd:")[1].split()[0], 16)


def test_probes_load_and_knobs_are_written_and_restored(site: Site) -> None:
    spec = find(render({"securityProfile": "capabilities"}), "DaemonSet")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    names = container["securityContext"]["capabilities"]["add"]
    # A bounding set cannot contain more capabilities than this machine grants.
    if not bounding_set(os.getpid()) >> 24 & 1:  # CAP_SYS_RESOURCE, needed before Linux 5.11 only
        names = [name for name in names if name != "SYS_RESOURCE"]
    before = site.knobs()
    # As in most pods, the processes do not belong to root.
    job = subprocess.Popen(["sleep", "infinity"], user=65534, group=65534)
    order = Path(f"/proc/{job.pid}/oom_score_adj")
    order.write_text("400")
    (site.batch[0] / "cgroup.procs").write_text(str(job.pid))
    with AgentRun(site, "--mode", "enforce", without=with_capabilities(names)) as agent:
        agent.ready().enforcing()
        assert bounding_set(agent.process.pid).bit_count() == len(names)
        up = agent.series("sweetpoint_probe_up")
        assert (up[("sched", "")], up[("net", "")]) == (1.0, 1.0)
        assert site.knobs() != before
        eventually("an order of ending", lambda: order.read_text() == "1000\n")
        assert agent.stop() == 0
    assert site.knobs() == before
    assert order.read_text() == "400\n"
    job.kill()
    job.wait()
