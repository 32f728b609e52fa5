# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the demonstration needs of a host, and a record of the host that it ran on."""

from collections.abc import Sequence
import importlib.util
import os
from pathlib import Path
import platform
import shutil
import subprocess
import time

from controller.demo.programs import BestEffort
from controller.host import HostError, find_cgroup_layout, online_cpus

__all__ = ("describe", "missing_for")

BTF = Path("/sys/kernel/btf/vmlinux")
# Debian's and Ubuntu's packages are called like the programs.
SERVICE = "nginx"


def missing_for(jobs: Sequence[BestEffort]) -> list[str]:
    """Return what this host lacks to run the real programs, with the way to get it."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root (run it with sudo): for cgroups and BPF")
    try:
        layout = find_cgroup_layout()
        if not os.access(layout.mount, os.W_OK):
            missing.append(f"write access to {layout.mount}: for cgroups of its own")
    except HostError as error:
        missing.append(f"the cpu controller: {error}")
    if not BTF.exists():
        missing.append(f"{BTF} (a kernel with CONFIG_DEBUG_INFO_BTF): for the BPF probe")
    if importlib.util.find_spec("bcc") is None:
        missing.append("bcc (apt install python3-bpfcc): for the BPF probe")
    missing += [
        f"{program} (apt install {program})"
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
