# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the demonstration needs of a host, and a record of the host that it ran on."""

from collections.abc import Sequence
from pathlib import Path
import platform
import shutil
import subprocess
import time

from controller.demo.programs import BestEffort
from controller.doctor import examine
from controller.host import online_cpus

__all__ = ("describe", "missing_for")

# Debian's and Ubuntu's packages are called like the programs.
SERVICE = "nginx"


def missing_for(jobs: Sequence[BestEffort]) -> list[str]:
    """Return what this host lacks to run the real programs, with the way to get it."""
    report = examine()
    missing = [
        f"{fact.name} missing ({fact.detail}): {fact.how or 'no way to get it is known'}"
        for fact in (*report.required, *report.probes)
        if fact.have is False and "enforce" in fact.modes
    ]
    missing += [
        f"{program} missing: apt install {program}"
        for program in (SERVICE, *(job.name for job in jobs))
        if shutil.which(program) is None
    ]
    return missing


def describe(jobs: Sequence[BestEffort]) -> list[tuple[str, str]]:
    """Return name and value of what a reader needs to judge the numbers."""
    versions = [_first_line("nginx", "-v"), *(_version(job) for job in jobs)]
    return [
        ("date", time.strftime("%Y-%m-%d %H:%M:%S %Z")),
        ("kernel", f"{platform.release()} {platform.machine()}"),
        ("CPUs", f"{len(online_cpus())} x {_cpu_model()}"),
        ("programs", "; ".join(versions)),
        ("python", platform.python_version()),
    ]


def _version(job: BestEffort) -> str:
    return _first_line(job.name, "-version" if job.name == "ffmpeg" else "--version")


def _first_line(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    words = (done.stdout or done.stderr).splitlines()[:1]
    return words[0].split(" Copyright")[0] if words else command[0]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
