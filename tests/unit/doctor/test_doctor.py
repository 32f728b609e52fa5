# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The doctor reports and never fails, whoever asks and whatever is missing."""

import json
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

import pytest

from controller import doctor
from controller.doctor import Fact, Report, examine, render_json, render_text
from controller.doctor.required import _idle_level

ROOT = Path(__file__).resolve().parents[3]
EXPECTED = {
    "kernel", "root", "capabilities", "cgroup cpu controller", "cpu quota", "cpu quota burst",
    "sched-idle", "BTF", "sched_info", "BPF", "bcc", "memlock", "tmpfs for the journal",
    "probe sched", "probe net", "probe shaping",
    "hardware PMU", "PSI", "SMT", "core scheduling", "resctrl", "links",
    "memory.high", "io.max, io.weight", "network namespaces", "tracefs", "bpffs",
}  # fmt: skip
AS_NOBODY = """
import os, sys
from controller import doctor
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
sys.exit(doctor.main(as_json=True))
"""


def check_shape(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Check that *report* is whole and return its facts by name."""
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
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_json_has_every_line() -> None:
    facts = check_shape(json.loads(render_json(examine())))
    assert facts["root"]["have"] is (os.geteuid() == 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_for_somebody_without_rights() -> None:
    report = run("-c", AS_NOBODY)
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


def test_a_probe_that_dies_is_one_line() -> None:
    (fact,) = examine(probes=("nonsense",)).probes
    assert fact.have is False
    assert fact.detail == "ModuleNotFoundError: No module named 'controller.probes.nonsense'"


def test_text_says_how_to_get_what_is_missing() -> None:
    missing = Fact(name="BTF", have=False, detail="none", needed_for="offsets", how="a new kernel")
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
        "                for offsets",
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


def test_exit_code_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main() == 0
    assert capsys.readouterr().out.startswith("Needed:\n")


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["kubepods/besteffort"], "on /kubepods/besteffort, before all others"),
        (["kubepods.slice/kubepods-besteffort.slice"], "kubepods-besteffort.slice, before"),
        (["kubepods/burstable"], "partial, no besteffort in /kubepods"),
        (["system.slice"], "in a cgroup of its own"),
    ],
)
def test_where_sched_idle_can_order_pods(tmp_path: Path, folders: list[str], words: str) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    assert words in _idle_level(tmp_path)
