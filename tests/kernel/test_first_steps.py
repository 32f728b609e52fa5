# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of the documents on a host of their own, in their order, compared with its output.

The host has cgroups, a network, ``/etc``, ``/run`` and ``/var/lib`` of its own, so the commands are
executed as they are printed. On it are nginx and an encoding, which share a CPU.
"""

from collections.abc import Iterator
import contextlib
from http import HTTPStatus
from importlib.metadata import version
import json
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.loads import Load, loads
from tests.kernel.netns import entered
from tests.kernel.overload import CPU, outweigh
from tests.kernel.transcript import ROOT, Shell, Step, matches, steps
from tests.kube.own_host import OwnHost
from tests.support.http import status_pages
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.apart]

BIN = Path(sys.executable).parent
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# What needs another machine or a cluster; the second kind is executed in tests/kube.
ELSEWHERE = re.compile(r"\b(HOST|NODE|NAMESPACE|POD)\b")
UNIT = "cat /etc/systemd/system/sweetpoint.service"
# Runs until nobody reads it, or until it is interrupted.
ENDLESS = "sweetpoint top"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[OwnHost]:
    with OwnHost(tmp_path / "host", f"sweetpoint-test-{os.getpid()}-host") as host:
        layers = [host.home / name for name in ("etc", "etc-work")]
        for layer in layers:
            layer.mkdir()
        options = f"lowerdir=/etc,upperdir={layers[0]},workdir={layers[1]}"
        host.run("mount", "-t", "overlay", "-o", options, "overlay", "/etc")
        yield host
    shutil.rmtree(tmp_path, ignore_errors=True)


def make(host: OwnHost, layout: CgroupLayout, path: str) -> Path:
    """Make a cgroup of a unit, with the cpu controller."""
    cgroup = host.cgroup("cpu")
    for name in path.split("/"):
        if layout.version == "v2":
            (cgroup / "cgroup.subtree_control").write_text("+cpu")
        cgroup /= name
        cgroup.mkdir(exist_ok=True)
    return cgroup


@contextlib.contextmanager
def opened(host: OwnHost) -> Iterator[Shell]:
    """A shell on *host*, in whose PATH is the program of this tree."""

    def start(command: list[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            host.inside(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=host.home,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
            preexec_fn=host.join,
        )

    shell = Shell(start)
    try:
        yield shell
    finally:
        shell.close()


def page(host: OwnHost) -> str | None:
    """Return the agent's page; ``None`` without an answer or with an error status."""
    with entered(host.network), contextlib.suppress(OSError):
        status, text = status_pages.get(9464, "/")
        return text if status == HTTPStatus.OK else None
    return None


def knobs(host: OwnHost) -> dict[Path, str]:
    return {
        file: file.read_text()
        for pattern in ("cpu.idle", "cpu.shares", "cpu.weight", "cpu.max", "cpu.cfs_*_us")
        for file in sorted(host.cgroup("cpu", "batch.slice").rglob(pattern))
    }


@pytest.mark.usefixtures("alone_on_cpu")
def test_from_doctor_to_the_uninstallation(host: OwnHost, cgroup_layout: CgroupLayout) -> None:
    service = make(host, cgroup_layout, "system.slice/nginx.service")
    job = make(host, cgroup_layout, "batch.slice/encode.service")
    outweigh(host.cgroup("cpu"), 200)  # what else runs on this machine must not count
    outweigh(host.cgroup("cpu", "batch.slice"))
    before = knobs(host)
    found = operations()[1]
    elsewhere = [step.command for step in found if ELSEWHERE.search(step.command)]
    assert {each.split()[0] for each in elsewhere} == {"sweetpoint", "ssh", "kubectl"}
    here = [step for step in found if step.command not in elsewhere]
    assert [step.command for step in here[:3]] == [*first_steps()]
    with (
        loads([Load(service, "bursts", CPU), Load(job, "hog", CPU)]) as running,
        opened(host) as shell,
    ):
        running.start()
        for step in here:
            execute(shell, step)
            if step.command.startswith("sed"):
                assert knobs(host) == before, "observe mode wrote a knob"
                check_page(host)
    assert knobs(host) == before


def operations() -> tuple[list[Step], list[Step]]:
    """Return the commands of the installation, and those after it."""
    found = steps("docs/OPERATIONS.md")
    first = [step.command for step in found].index("sweetpoint doctor")
    return found[:first], found[first:]


def first_steps() -> Iterator[str]:
    """Yield the commands of the README up to the agent, as they are on an installed host."""
    *first, run = steps("README.md")[-4:]
    assert run.command == "sudo .venv/bin/sweetpoint run"
    for step in first:
        yield step.command.removeprefix("sudo ").removeprefix(".venv/bin/")


@pytest.mark.thorough
def test_the_installation(host: OwnHost) -> None:
    for path in ("/opt", "/usr/local/bin", "/etc/systemd"):
        host.run("mount", "-t", "tmpfs", "tmpfs", path)
    host.run("mkdir", "-p", "/etc/systemd/system", "/opt/source")
    packages, environment, *rest = [step.command for step in operations()[0]]
    assert packages.startswith("apt-get install -y ")
    with opened(host) as shell:
        for name in ("controller", "actuators", "bpf", "profiles", "deploy"):
            shell.run(f"cp -r {ROOT / name} /opt/source/")
        shell.run(f"cp {ROOT}/pyproject.toml {ROOT}/README.md {ROOT}/LICENSE /opt/source/")
        shell.run("cd /opt/source; export PATH=/usr/local/bin:${PATH#*:}")
        shell.run(environment)
        # The dependencies are those of this interpreter, before its own: nothing is fetched.
        fetched = Path("/opt/sweetpoint/lib") / PYTHON / "site-packages/fetched.pth"
        host.file(str(fetched)).write_text(
            f"import sys; sys.path.insert(0, {sysconfig.get_path('purelib')!r})\n"
        )
        shell.run("export PIP_NO_INDEX=1 PIP_NO_BUILD_ISOLATION=0")
        for command in rest:
            shell.run(command)
        assert shell.run("command -v sweetpoint") == "/usr/local/bin/sweetpoint"
        assert shell.run("cd /; sweetpoint --version") == f"sweetpoint {version('sweetpoint')}"
        profiles = "from controller.host.package_data import profiles_dir; print(profiles_dir())"
        installed = shell.run(f'/opt/sweetpoint/bin/python -c "{profiles}"')
        assert installed.startswith("/opt/sweetpoint/lib/")
        (program,) = re.findall(r"^ExecStart=(\S+) run$", shell.run(UNIT), re.MULTILINE)
        assert shell.run(f"{program} --version") == f"sweetpoint {version('sweetpoint')}"


def execute(shell: Shell, step: Step) -> None:
    if step.command == ENDLESS:
        shell.run(f"{ENDLESS} | grep -m 1 'service nginx'")
    elif step.output and re.match("sweetpoint (top|advise|explain|status)", step.command):
        shell.until(step)
    else:
        output = shell.run(step.command)
        assert step.output is None or matches(step.output, output), f"{step.command}: {output}"


def check_page(host: OwnHost) -> None:
    found = eventually("the page", lambda: page(host)) or ""
    for title in ("Services and their sweet points", "What enforcing would bring", "Over time"):
        assert title in found
    assert '<b class="badge off">observing</b>' in found


@pytest.mark.thorough
def test_a_knob_is_released_by_hand_as_the_runbook_says(
    host: OwnHost, cgroup_layout: CgroupLayout
) -> None:
    make(host, cgroup_layout, "system.slice/nginx.service")
    make(host, cgroup_layout, "batch.slice/encode.service")
    before = knobs(host)
    with opened(host) as shell:
        shell.run("sweetpoint init --write /etc/sweetpoint/config.yaml")
        shell.run("sweetpoint run --mode enforce 2>sweetpoint.log &")
        eventually("sched-idle", lambda: knobs(host) != before)
        # Stopped first, because an agent restores every knob when its guardian dies.
        shell.run("agent=$(pgrep -P $!); kill -STOP $agent; kill -9 $! $agent; wait || true")
        (record,) = host.file("/run/sweetpoint/journal").glob("cpu.idle.*.json")
        record.write_text(re.sub('"crc": .*', '"crc": 0}', record.read_text()))
        assert str(record.with_suffix(".bad").name) in shell.run("! sweetpoint release")
        assert knobs(host) != before
        damaged = json.loads(record.with_suffix(".bad").read_text())
        assert damaged["knob"] == "cpu.idle"
        idle, weight = damaged["original"].split()
        cgroup = host.cgroup("cpu", damaged["path"])
        (cgroup / "cpu.idle").write_text(idle)
        (cgroup / ("cpu.shares" if cgroup_layout.version == "v1" else "cpu.weight")).write_text(
            weight
        )
        assert knobs(host) == before
        record.with_suffix(".bad").unlink()
        shell.run("chown 65534 /run/sweetpoint; chmod g+w /run/sweetpoint; ! sweetpoint release")
        (owned,) = re.findall(r"`(chown [^`]*)`", (ROOT / "docs/RUNBOOK.md").read_text())
        shell.run(owned)
        assert shell.run("sweetpoint release") == "nothing to restore"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 1ms of 2ms (3%) [##!!..]", "a 10.5us of 7s (100%) [......]", True),
        ("runq_p99 1ms", "runq_p95 1ms", False),
        ("for 10min 51s", "for 12s", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...", "a", True),
        ("a\n...\nd", "a\nb\nc", False),
        ("a", "a\nb", False),
        ("", "a", False),
        ("w no quota, uses 1cpu", "w 0.05cpu, uses 1cpu, 19% of what hurts web", True),
        ("cause of 99% (w 99%)", "cause of 99% (w 98%), host 1%, outside /system.slice 2%", True),
        ("cause of 99% (w 99%)", "cause of 99% (w 98%), best-effort x 1%", False),
        ("w no quota, uses 1cpu", "w no quota, idle, uses 1cpu", False),
        ("/web.service: unlimited -> 0.05cpu", "/web.service: 2cpu -> 0.05cpu", False),
    ],
)
def test_outputs_are_compared_by_shape(shown: str, printed: str, same: bool) -> None:
    assert matches(tuple(shown.splitlines()), printed) is same
