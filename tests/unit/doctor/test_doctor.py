# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The doctor's report: complete and without failure for any user and any missing feature."""

import json
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

import pytest

from controller import doctor
from controller.doctor import Fact, Report, examine, render_json, render_text
from controller.doctor.required import _idle_level, _state_dir, find_required
from tests.support.needs import needs_root
from tests.support.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]
EXPECTED = {
    "kernel", "root", "capabilities", "cgroup cpu controller", "cpu quota", "cpu quota burst",
    "sched-idle", "BTF", "kernel lockdown", "sched_info", "BPF", "bcc", "memlock",
    "tmpfs for the journal",
    "probe sched", "probe net", "probe disk", "probe shaping",
    "hardware PMU", "PSI", "SMT", "core scheduling", "resctrl", "links",
    "memory.high", "memory limit", "io.max, io.weight", "cpuset.cpus", "network namespaces", "NRI",
    "tracefs", "bpffs",
}  # fmt: skip
UNPRIVILEGED = """
import os, sys
from controller import doctor
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(doctor.main(as_json=True))
"""


def check_shape(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Check that *report* is complete and return its facts by name."""
    assert set(report) == {"required", "probes", "optional", "blocked"}
    facts = [*report["required"], *report["probes"], *report["optional"]]
    assert {fact["name"] for fact in facts} == EXPECTED
    for fact in facts:
        assert set(fact) == {"name", "have", "detail", "needed_for", "how", "modes"}
        assert fact["have"] in (True, False, None)
        assert fact["detail"], fact
        assert fact["needed_for"], fact
        assert fact["have"] or fact["how"], fact
    assert set(report["blocked"]) == {"observe", "enforce"}
    return {fact["name"]: fact for fact in facts}


def run(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.kernel
def test_json_has_every_line() -> None:
    facts = check_shape(json.loads(render_json(examine())))
    assert facts["root"]["have"] is (os.geteuid() == 0)


@needs_root("to change the user")
def test_for_a_user_without_rights() -> None:
    report = run("-c", UNPRIVILEGED)
    facts = check_shape(report)
    assert facts["root"]["have"] is False
    assert facts["capabilities"]["detail"] == "none"
    assert "root" in report["blocked"]["observe"]
    assert "capabilities" in report["blocked"]["enforce"]


def test_without_any_installed_package() -> None:
    # -S: no site-packages, so neither bcc nor numpy nor pydantic.
    facts = check_shape(run("-S", "-m", "controller.doctor", "--json"))
    assert facts["bcc"]["have"] is False
    assert "python3-bpfcc" in facts["bcc"]["how"]


def test_a_failing_probe_is_described_in_one_line() -> None:
    (fact,) = examine(probes=("nonsense",)).probes
    assert fact.have is False
    assert fact.detail == "ModuleNotFoundError: No module named 'controller.probes.nonsense'"


def test_the_text_names_the_remedy_for_what_is_missing() -> None:
    missing = Fact(
        name="BTF",
        have=False,
        detail="none",
        needed_for="offsets",
        how="a new kernel",
        modes=("observe",),
    )
    have = Fact(name="root", have=True, detail="user 0", needed_for="all", how="never shown")
    report = Report(
        required=(missing,),
        probes=(),
        optional=(have,),
        blocked={"observe": ("BTF",), "enforce": ()},
    )
    assert render_text(report).splitlines() == [
        "Needed:",
        "  MISSING BTF   none",
        "                for observe: offsets",
        "                get it: a new kernel",
        "",
        "Probes:",
        "",
        "Optional:",
        "  have    root  user 0",
        "                for all",
        "",
        "observe: missing BTF",
        "enforce: works here",
    ]


@pytest.mark.kernel
@pytest.mark.thorough
def test_exit_code_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main() == 0
    assert capsys.readouterr().out.startswith("Needed:\n")


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["kubepods/besteffort"], "/kubepods/besteffort has kubelet's lowest weight"),
        (["kubepods.slice/kubepods-besteffort.slice"], "besteffort.slice has kubelet's lowest"),
        (["kubepods/burstable"], "partial, no besteffort in /kubepods"),
        (["system.slice"], "into a cgroup beside the services"),
    ],
)
def test_where_sched_idle_can_order_pods(tmp_path: Path, folders: list[str], words: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    assert words in _idle_level(tmp_path)


@pytest.mark.parametrize("fs_type", ["tmpfs", "ext4"])
def test_a_mount_of_a_user_with_an_odd_name_is_not_that_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fs_type: str
) -> None:
    table = tmp_path / "mountinfo"
    monkeypatch.setattr("controller.host.facts._MOUNTINFO", table)
    odd = (
        "50 23 0:50 / /home/user/\x0b1\x1f2\x1f0:3\x1f/\x1f/run\x1frw\x1frw\x0b rw - fuse.x x rw\n"
    )
    table.write_text(f"{odd}25 20 0:22 / /run rw - {fs_type} none rw\n")
    assert _state_dir().have is (fs_type == "tmpfs")


MODES = ((), ("enforce",), ("observe", "enforce"))


@pytest.mark.parametrize("have", [True, False, None])
@pytest.mark.parametrize("modes", MODES)
def test_the_verdict_and_the_lines_say_the_same(have: bool | None, modes: tuple[str, ...]) -> None:
    """What is missing under "Needed" is named by the verdict of each mode that it is needed for."""
    fact = Fact(name="thing", have=have, detail="-", needed_for="work", how="get one", modes=modes)
    blocked: dict[str, tuple[str, ...]] = {
        mode: (fact.name,) if have is False and mode in modes else ()
        for mode in ("observe", "enforce")
    }
    report = Report(required=(fact,), probes=(), optional=(), blocked=blocked)
    needed, _, rest = render_text(report).partition("Probes:")
    assert ("thing" in needed) is bool(modes)
    verdicts = dict(line.split(": ", 1) for line in rest.splitlines()[-2:])
    for mode, verdict in verdicts.items():
        is_needed = mode in modes
        expected = {True: "works here", None: "works here, if thing can be had"}
        assert verdict == ("works here" if not is_needed else expected.get(have, "missing thing"))
    assert ("for observe and enforce: work" in needed) is (not have and len(modes) == 2)


def test_what_keeps_the_probe_from_loading_is_needed_for_enforcing() -> None:
    facts = {fact.name: fact for fact in find_required()}
    assert facts["kernel lockdown"].modes == facts["BTF"].modes == ("enforce",)
