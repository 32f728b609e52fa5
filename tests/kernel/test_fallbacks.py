# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Doctor and agent on hosts that lack sched_info, BTF or the cgroup2 tree."""

from collections.abc import Iterator
import json
from pathlib import Path
import re
import subprocess
import sys

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.without import btf_without_sched_info, without
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Site]:
    yield Site(cgroup_root, cgroup_layout, tmp_path)


def hiding_command(what: str, folder: Path, layout: CgroupLayout) -> str:
    if "cgroup2" in what and layout.version == "v2":
        pytest.skip("on v2 there are no workloads without that tree")
    if "sched_info" in what:
        btf_without_sched_info(folder)
    return without(what, folder, layout)


@pytest.mark.parametrize(
    "what", ["sched_info", "BTF", "cgroup2", "sched_info and cgroup2", "BTF and cgroup2"]
)
def test_the_doctor_reports_it(what: str, tmp_path: Path, cgroup_layout: CgroupLayout) -> None:
    hide = hiding_command(what, tmp_path, cgroup_layout)
    doctor = [sys.executable, "-m", "controller.cli.main", "doctor", "--json"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", f'{hide}; exec "$@"', "-", *doctor],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    report = json.loads(done.stdout)
    facts = {fact["name"]: fact for part in ("required", "probes") for fact in report[part]}
    btf, stamps, net = "BTF" not in what, "sched_info" in what, "cgroup2" not in what
    assert facts["BTF"]["have"] is btf
    assert facts["sched_info"]["have"] is (None if not btf else not stamps)
    assert facts["probe sched"]["have"] is btf
    assert ("wakeup stamps" in facts["probe sched"]["detail"]) is stamps
    assert btf or "CONFIG_DEBUG_INFO_BTF" in facts["probe sched"]["detail"]
    assert facts["probe net"]["have"] is net
    assert net or facts["probe net"]["detail"].startswith("no cgroup2 tree is mounted")
    assert ("BTF" in report["blocked"]["enforce"]) is not btf
    assert not {"BTF", "sched_info", "probe sched"} & set(report["blocked"]["observe"])


def test_the_agent_uses_wakeup_stamps_without_sched_info(
    site: Site, tmp_path: Path, cgroup_layout: CgroupLayout
) -> None:
    wanted = [Load(site.service, "bursts"), *(Load(path, "hog") for path in site.batch)]
    hide = hiding_command("sched_info", tmp_path, cgroup_layout)
    with loads(wanted) as running, AgentRun(site, without=hide) as agent:
        agent.ready().enforcing()
        running.start()
        eventually(
            "a latency",
            lambda: (
                {
                    loop["status"]
                    for loop in agent.status()["plan"]["loops"]
                    if loop["indicator"] == "runq_p99" and loop["value"]
                }
                == {"fresh"}
            ),
        )
        reason = agent.status()["probe_fallbacks"]["sched"]
        assert "no member sched_info" in reason
        metrics = agent.metrics()
        assert re.search(r'^sweetpoint_probe_fallback\{probe="sched",.*\} 1\.0$', metrics, re.M)
        assert re.search(r'^sweetpoint_probe_up\{probe="sched",reason=""\} 1\.0$', metrics, re.M)
        assert agent.stop() == 0
    assert f"probe sched: {reason}" in agent.output


def test_the_agent_runs_without_btf_and_cgroup2(
    site: Site, tmp_path: Path, cgroup_layout: CgroupLayout
) -> None:
    hide = hiding_command("BTF and cgroup2", tmp_path, cgroup_layout)
    before = site.knobs()
    with AgentRun(site, without=hide) as agent:
        eventually("a tick", lambda: agent.get("/healthz"))
        status = agent.status()
        assert {"sched", "net"} <= set(status["probes"])
        assert status["probe_fallbacks"] == {}
        assert agent.stop() == 0
        assert agent.output.count("is off:") >= 2
    assert site.knobs() == before
