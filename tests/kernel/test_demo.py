# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The demonstration with real programs, also interrupted: nothing of it is left behind."""

from collections.abc import Iterator
import contextlib
import json
import os
from pathlib import Path
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from controller.demo.cgroups import DemoCgroups, DemoError
from controller.demo.programs import free_port, start_nginx
from controller.host.facts import CgroupLayout
from tests.support.waiting import DEADLINE_S, WORK_S, eventually

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.apart,
    pytest.mark.thorough,
    pytest.mark.skipif(
        not (shutil.which("nginx") and shutil.which("stress-ng")), reason="nginx or stress-ng"
    ),
]


class Demo:
    """``sweetpoint demo`` with phases of a few seconds, in a session of its own."""

    def __init__(self, directory: Path, seconds: int) -> None:
        self.report, self.raw = directory / "report.html", directory / "raw.json"
        self._output = directory / "output"
        command = [sys.executable, "-m", "controller.cli.main", "demo", "--be", "stress-ng"]
        command += ["--rounds", "1", "--seconds", str(seconds), "--report", str(self.report)]
        with self._output.open("wb") as output:
            self.popen = subprocess.Popen(
                [*command, "--json", str(self.raw)],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.cgroup = f"sweetpoint-demo-{self.popen.pid}"

    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, phase: str, program: str) -> Path:
        """Wait until *program* runs in *phase*; return the directory of the demonstration."""
        eventually(phase, lambda: phase in self.output() or self.has_ended())
        eventually(program, lambda: program in self.names() or self.has_ended())
        assert not self.has_ended(), self.output()
        (home,) = self.homes()
        assert home.parent == Path(tempfile.gettempdir())
        return home

    def has_ended(self) -> bool:
        return self.popen.poll() is not None

    def names(self) -> dict[str, list[int]]:
        """Return its processes by the names of their programs."""
        found: dict[str, list[int]] = {}
        for pid in self.members():
            with contextlib.suppress(OSError):  # ended meanwhile
                found.setdefault(Path(f"/proc/{pid}/comm").read_text().strip(), []).append(pid)
        return found

    def homes(self) -> set[Path]:
        """Return the working directories of its programs: its temporary directory."""
        found = set()
        for pid in self.members():
            with contextlib.suppress(OSError):  # ended meanwhile
                found.add(Path(os.readlink(f"/proc/{pid}/cwd")))
        return found

    def members(self) -> list[int]:
        mounts = Path("/sys/fs/cgroup")
        pids: list[int] = []
        for pattern in (f"{self.cgroup}/*/cgroup.procs", f"*/{self.cgroup}/*/cgroup.procs"):
            for procs in mounts.glob(pattern):
                pids += map(int, procs.read_text().split())
        return pids

    def left(self, home: Path) -> list[str]:
        """Return its cgroups, files and processes that still exist."""
        found = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{self.cgroup}")]
        found += [str(path) for path in Path("/sys/fs/cgroup").glob(self.cgroup)]
        found += [str(home)] if home.exists() else []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if str(home) in command:
                found.append(command)
        return found


@pytest.fixture
def demo(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Demo]:
    # A phase that a test interrupts lasts until then.
    one = Demo(tmp_path, seconds=getattr(request, "param", 600))
    yield one
    if not one.has_ended():
        one.popen.terminate()
        one.popen.wait(DEADLINE_S)


@pytest.mark.parametrize("demo", [15], indirect=True)  # the phase before must end
def test_a_signal_ends_it_without_leftovers(demo: Demo) -> None:
    home = demo.wait_for("unmanaged,", "stress-ng")
    assert demo.left(home)
    demo.popen.send_signal(signal.SIGINT)
    demo.popen.send_signal(signal.SIGINT)  # as if Ctrl-C is pressed twice
    assert demo.popen.wait(DEADLINE_S) == 128 + signal.SIGINT
    assert demo.left(home) == []
    assert demo.output().splitlines()[-1].startswith("interrupted by SIGINT: everything")
    assert not demo.report.exists()


def test_after_sigkill_the_watchdog_cleans_up(demo: Demo) -> None:
    home = demo.wait_for("alone,", "nginx")
    demo.popen.kill()
    demo.popen.wait()
    eventually("nothing left", lambda: not demo.left(home))


def test_the_error_names_a_program_that_died(demo: Demo) -> None:
    home = demo.wait_for("alone,", "nginx")
    for pid in demo.names()["nginx"]:
        with contextlib.suppress(ProcessLookupError):  # ended by the demonstration already
            os.kill(pid, signal.SIGKILL)
    assert demo.popen.wait(DEADLINE_S) == 1
    assert "nginx ended with -9" in demo.output()
    assert demo.left(home) == []


def phases_of(demo: Demo) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Wait for the end of the demonstration; return its phases."""
    assert demo.popen.wait(WORK_S) == 0, demo.output()
    raw = json.loads(demo.raw.read_text())
    assert [each["mode"] for each in raw["memory"]] == ["observe", "enforce"]
    assert "memory: " in demo.output()
    alone, unmanaged, managed = raw["phases"]
    return alone, unmanaged, managed


@pytest.mark.parametrize("demo", [5], indirect=True)
def test_a_short_demonstration_runs_to_its_end(demo: Demo) -> None:
    phases = alone, unmanaged, managed = phases_of(demo)
    titles = [phase["title"] for phase in phases]
    assert titles == ["alone", "stress-ng unmanaged", "stress-ng managed"]
    assert any(second["latency_us"] for phase in phases for second in phase["load"])
    assert alone["work"] is None
    assert unmanaged["work"] is not None and managed["work"] is not None
    assert any(sample["be_idle"] for sample in managed["samples"])
    assert not any(sample["be_idle"] for sample in unmanaged["samples"])
    assert "stress-ng managed" in demo.report.read_text()
    assert demo.left(Path("/nonexistent")) == []


@pytest.mark.timed
def test_a_demonstration_measures_service_and_job(tmp_path: Path) -> None:
    alone, unmanaged, managed = phases_of(Demo(tmp_path, seconds=4))
    for phase in (alone, unmanaged, managed):
        answered = sum(len(second["latency_us"]) for second in phase["load"])
        # Poisson arrivals: 1,500 per second, within four standard deviations.
        assert answered == pytest.approx(1500 * len(phase["load"]), rel=0.11)
        assert any(sample["runq_p99_ms"] for sample in phase["samples"])
    assert unmanaged["work"]["amount"] > 0
    assert managed["work"]["amount"] > 0


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A directory that nginx's workers may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="sweetpoint-test-") as directory:
        home = Path(directory)
        home.chmod(0o755)
        yield home


def test_nginx_takes_another_port_when_one_is_in_use(open_home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = free_port()
        ports = iter((taken.getsockname()[1], free))
        nginx, port = start_nginx(open_home, port_of=lambda: next(ports))
        try:
            assert port == free
        finally:
            nginx.stop()


def test_cgroups_are_emptied_of_processes_that_ignore_signals(cgroup_layout: CgroupLayout) -> None:
    cgroups = DemoCgroups(
        cpu_mount=cgroup_layout.mount,
        cpuacct_mount=None,
        version=cgroup_layout.version,
        tag=f"test-{os.getpid()}",
    )
    try:
        cgroups.create(("ls",))
        with pytest.raises(DemoError, match="File exists"):
            cgroups.create(("ls",))
        stubborn = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(3600)"
        child = subprocess.Popen(
            [sys.executable, "-c", stubborn], preexec_fn=lambda: cgroups.join("ls")
        )
        outsider = subprocess.Popen(["sleep", "infinity"])
    finally:
        cgroups.remove()
    assert child.wait(DEADLINE_S) == -signal.SIGKILL
    assert outsider.poll() is None
    outsider.kill()
    outsider.wait()
    cgroups.remove()  # a second call has no effect


def test_v2_without_the_cpu_controller_is_an_error(
    cgroup_layout: CgroupLayout,
) -> None:
    if cgroup_layout.version == "v2" or cgroup_layout.unified is None:
        pytest.skip("needs a hybrid host, whose cgroup2 tree has no cpu controller")
    cgroups = DemoCgroups(
        cpu_mount=cgroup_layout.unified,
        cpuacct_mount=None,
        version="v2",
        tag=f"test-v2-{os.getpid()}",
    )
    try:
        with pytest.raises(DemoError, match="the cpu controller of cgroup v2 is not enabled in"):
            cgroups.create(("ls",))
    finally:
        cgroups.remove()
    assert not (cgroup_layout.unified / cgroups.path[1:]).exists()
