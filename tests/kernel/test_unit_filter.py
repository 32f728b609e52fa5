# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent under the filter of system calls that the systemd unit has."""

import ctypes
import errno
from pathlib import Path
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "sweetpoint.service"

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"),
]
# Starts the program in argv under a filter that refuses the system calls in the first argument, as
# systemd does for a list that begins with "~".
FILTERED = f"""
import ctypes, os, sys
seccomp = ctypes.CDLL("libseccomp.so.2")
seccomp.seccomp_init.restype = ctypes.c_void_p
seccomp.seccomp_load.argtypes = (ctypes.c_void_p,)
seccomp.seccomp_rule_add.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint)
context = seccomp.seccomp_init(0x7FFF0000)  # SCMP_ACT_ALLOW
for name in sys.argv[1].split():
    number = seccomp.seccomp_syscall_resolve_name(name.encode())
    if number >= 0:  # else another architecture's
        refused = seccomp.seccomp_rule_add(context, 0x00050000 | {errno.EPERM}, number, 0)
        assert refused == 0, name
assert seccomp.seccomp_load(context) == 0
os.execvp(sys.argv[2], sys.argv[2:])
"""


def refused() -> set[str]:
    """Return the system calls that the unit forbids."""
    found: set[str] = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.M):
        names = {name for word in line.removeprefix("~").split() for name in expanded(word)}
        found = found | names if line.startswith("~") else found - names
    return found


def expanded(word: str) -> set[str]:
    """Return the system calls of a group, or the one named."""
    if not word.startswith("@"):
        return {word}
    command = ["systemd-analyze", "--no-pager", "syscall-filter", word]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line.strip() for line in done.stdout.splitlines()[1:]]
    calls = {name for name in names if name and not name.startswith("#")}
    return {call for name in calls for call in expanded(name)}


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


@pytest.fixture
def filtered() -> tuple[str, ...]:
    """The command that puts a program under the filter."""
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("needs libseccomp")
    return sys.executable, "-c", FILTERED, " ".join(sorted(refused()))


def test_the_filter_refuses_what_it_names(filtered: tuple[str, ...]) -> None:
    calls = "import ctypes; c = ctypes.CDLL(None, use_errno=True); c.{}; print(ctypes.get_errno())"
    for call in ("swapoff(b'/no/such')", "ptrace(0, 0, 0, 0)"):
        command = [*filtered, sys.executable, "-c", calls.format(call)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert int(done.stdout) == errno.EPERM, call
    assert {"init_module", "kexec_load", "iopl"} <= refused()
    assert refused().isdisjoint({"bpf", "perf_event_open", "setns", "mount", "prctl"})


def test_the_agent_works_as_without_it(site: Site, filtered: tuple[str, ...]) -> None:
    before = site.knobs()
    with AgentRun(site, without=f'set -- {shlex.join(filtered)} "$@"') as agent:
        agent.ready().enforcing()
        with_filter = agent.status()
        assert agent.stop() == 0
    assert site.knobs() == before
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        without = agent.status()
        assert agent.stop() == 0
    assert with_filter["probes"] == without["probes"]
    assert with_filter["probe_fallbacks"] == without["probe_fallbacks"]
    assert with_filter["tick"]["failed"] == 0


def test_the_doctor_finds_as_much_as_without_it(filtered: tuple[str, ...]) -> None:
    doctor = [sys.executable, "-m", "controller.cli.main", "doctor"]
    found = [
        subprocess.run([*prefix, *doctor], capture_output=True, text=True, check=True).stdout
        for prefix in (filtered, ())
    ]
    assert marks(found[0]) == marks(found[1])


def marks(report: str) -> list[str]:
    """Return the lines of facts without their details, which may change between two runs."""
    return re.findall(r"^  ((?:have|MISSING|unknown) +\S+)", report, re.M)
