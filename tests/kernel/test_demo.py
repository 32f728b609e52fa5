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
import time

import pytest

from controller.demo.cgroups import DemoCgroups, DemoError
from controller.demo.programs import free_port, start_nginx
from controller.host.facts import CgroupLayout

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        not (shutil.which("nginx") and shutil.which("stress-ng")), reason="nginx or stress-ng"
    ),
]
GONE_WITHIN_S = 15.0


class Demo:
    """``sweetpoint demo`` with phases of a few seconds, in a session of its own."""

    def __init__(self, directory: Path, seconds: int) -> None:
        self.report, self.raw = directory / "report.html", directory / "raw.json"
        self._output = directory / "output"
        command = [sys.executable, "-m", "controller.cli.main", "demo", "--be", "stress-ng"]
        command += ["--seconds", str(seconds), "--report", str(self.report)]
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

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.output():
            assert self.popen.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

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
def demo(tmp_path: Path) -> Iterator[Demo]:
    one = Demo(tmp_path, seconds=2)
    yield one
    if one.popen.poll() is None:
        one.popen.terminate()
        one.popen.wait(30)


def home_of(demo: Demo) -> Path:
    (home,) = demo.homes()
    assert home.parent == Path(tempfile.gettempdir())
    return home


def assert_nothing_left(demo: Demo, home: Path) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := demo.left(home):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("signum", "when"),
    [
        (signal.SIGINT, "unmanaged,"),
        (signal.SIGTERM, "stress-ng managed, 2 s\n"),
    ],
)
def test_a_signal_ends_it_without_leftovers(demo: Demo, signum: signal.Signals, when: str) -> None:
    demo.wait_for(when)
    time.sleep(1.5)
    home = home_of(demo)
    assert demo.left(home)
    demo.popen.send_signal(signum)
    demo.popen.send_signal(signum)  # as if Ctrl-C is pressed twice
    assert demo.popen.wait(30) == 128 + signum
    assert demo.left(home) == []
    assert demo.output().splitlines()[-1].startswith(f"interrupted by {signum.name}: everything")
    assert not demo.report.exists()


def test_after_sigkill_the_watchdog_cleans_up(demo: Demo) -> None:
    demo.wait_for("unmanaged,")
    time.sleep(1.5)
    home = home_of(demo)
    demo.popen.kill()
    demo.popen.wait()
    assert_nothing_left(demo, home)


def test_the_error_names_a_program_that_died(demo: Demo) -> None:
    demo.wait_for("unmanaged,")
    time.sleep(1.0)
    home = home_of(demo)
    for pid in demo.members():
        try:
            name = Path(f"/proc/{pid}/comm").read_text()
        except OSError:
            continue
        if name.startswith("nginx"):
            os.kill(pid, signal.SIGKILL)
    assert demo.popen.wait(30) == 1
    assert "nginx ended with -9" in demo.output()
    assert demo.left(home) == []


def test_a_short_demonstration_runs_to_its_end(tmp_path: Path) -> None:
    demo = Demo(tmp_path, seconds=4)
    assert demo.popen.wait(90) == 0, demo.output()
    run = json.loads(demo.raw.read_text())
    assert [phase["title"] for phase in run["phases"]] == [
        "alone",
        "stress-ng unmanaged",
        "stress-ng managed",
    ]
    alone, unmanaged, managed = run["phases"]
    for phase in run["phases"]:
        answered = sum(len(second["latency_us"]) for second in phase["load"])
        # Poisson arrivals: 1,500 per second, within four standard deviations.
        assert answered == pytest.approx(1500 * len(phase["load"]), rel=0.11)
        assert any(sample["runq_p99_ms"] for sample in phase["samples"])
    assert alone["work"] is None
    assert unmanaged["work"]["amount"] > 0
    assert managed["work"]["amount"] > 0
    assert any(sample["be_idle"] for sample in managed["samples"])
    assert not any(sample["be_idle"] for sample in unmanaged["samples"])
    assert "stress-ng managed" in demo.report.read_text()
    assert demo.left(Path("/nonexistent")) == []


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
        stubborn = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
        child = subprocess.Popen(
            [sys.executable, "-c", stubborn], preexec_fn=lambda: cgroups.join("ls")
        )
        outsider = subprocess.Popen(["sleep", "60"])
    finally:
        cgroups.remove()
    assert child.wait(30) == -signal.SIGKILL
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
