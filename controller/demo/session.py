# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resources of a demonstration and their cleanup; requirements and facts of the host.

Leaving a ``Session`` stops its programs, removes its cgroups and deletes its directory. If this
process is killed, a watchdog does the same: a child in a session of its own that blocks on a
pipe, of which this process has the other end.
"""

from collections.abc import Iterator, Sequence
import contextlib
import os
from pathlib import Path
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from types import FrameType
from typing import Any, Self

from controller.demo.agent import Agent
from controller.demo.cgroups import DemoCgroups
from controller.demo.programs import BestEffort, Process
from controller.doctor import examine
from controller.host.facts import online_cpus

__all__ = (
    "Interrupted",
    "Session",
    "describe",
    "first_line",
    "interruptible",
    "missing_for",
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# An orphaned agent restores its knobs within 2 s, for which the cgroups must still exist.
WATCHDOG_GRACE_S = 2.0
ORDERLY_STOP_S = 2.0


class Interrupted(BaseException):
    """A signal ended the demonstration. Derived from BaseException to pass ``except Exception``."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise ``Interrupted`` on the first SIGINT, SIGTERM or SIGHUP and ignore later ones.

    The block must contain the cleanup, so that a second Ctrl-C does not interrupt the cleanup.
    """

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        _ignore_signals()
        raise Interrupted(signum)

    old = {signum: signal.signal(signum, interrupt) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)


def _ignore_signals() -> None:
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


class Session:
    """A temporary directory ``home``, the ``cgroups`` and the started programs.

    To be used inside ``interruptible``, which restores the signal handlers.
    """

    def __init__(self, cgroups: DemoCgroups) -> None:
        self.cgroups = cgroups
        self.home = Path("/nonexistent")
        self.agent: Agent | None = None
        self._processes: list[Process] = []
        self._watchdog: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        try:
            self.home = Path(tempfile.mkdtemp(prefix="sweetpoint-demo-"))
            self.home.chmod(0o755)  # nginx's workers run as another user and read the page here
            self._watchdog = self._start_watchdog()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # signal.signal() may run the handler of a pending signal, which raises.
        try:
            _ignore_signals()
        finally:
            self._clean_up()

    def add(self, process: Process) -> Process:
        """Register a process that the cleanup stops."""
        self._processes.append(process)
        return process

    def remove(self, process: Process) -> None:
        """Remove a process that was stopped."""
        self._processes.remove(process)

    def start_agent(self, mode: str, **profile: Any) -> Agent:
        """Start the agent in *mode* and wait until it measures; stop a running one first.

        :raises DemoError: the agent does not start.
        """
        self.stop_agent()
        self.agent = Agent(self.home, self.cgroups.path, mode, **profile)
        self.agent.wait_until_ready()
        return self.agent

    def stop_agent(self) -> None:
        """Stop the agent if one runs."""
        if self.agent is not None:
            self.agent.stop()
            self.agent = None

    def check(self) -> None:
        """Check that all programs run.

        :raises DemoError: a program ended.
        """
        for process in self._processes:
            process.check()
        if self.agent is not None:
            self.agent.process.check()

    def _clean_up(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._stop_watchdog)
            stack.callback(shutil.rmtree, self.home, ignore_errors=True)
            stack.callback(self.cgroups.remove)
            for process in self._processes:
                # SIGTERM first: nginx and stress-ng then end and reap their own children.
                stack.callback(process.stop, signal.SIGTERM, ORDERLY_STOP_S)
            stack.callback(self.stop_agent)

    def _start_watchdog(self) -> tuple[int, int]:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write_end)
            try:
                self._run_watchdog(read_end)
            finally:
                os._exit(0)
        os.close(read_end)
        return pid, write_end

    def _run_watchdog(self, read_end: int) -> None:
        os.setsid()
        _ignore_signals()
        if os.read(read_end, 1):
            return
        time.sleep(WATCHDOG_GRACE_S)
        try:
            self.cgroups.remove()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            pid, write_end = self._watchdog
            with contextlib.suppress(BrokenPipeError):
                os.write(write_end, b".")
            os.close(write_end)
            os.waitpid(pid, 0)
            self._watchdog = None


# On Debian and Ubuntu the packages have the names of the programs.
SERVICE = "nginx"


def missing_for(jobs: Sequence[BestEffort]) -> list[str]:
    """Return what this host lacks to run the real programs, each with the way to get it."""
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
    """Return (name, value) of the host and the programs, for the interpretation of the numbers."""
    versions = [first_line("nginx", "-v"), *(_version(job) for job in jobs)]
    return [
        ("date", time.strftime("%Y-%m-%d %H:%M:%S %Z")),
        ("kernel", f"{platform.release()} {platform.machine()}"),
        ("CPUs", f"{len(online_cpus())} x {_cpu_model()}"),
        ("programs", "; ".join(versions)),
        ("python", platform.python_version()),
    ]


def _version(job: BestEffort) -> str:
    return first_line(job.name, "-version" if job.name == "ffmpeg" else "--version")


def first_line(*command: str) -> str:
    """Return the first line that *command* prints, without a copyright; else the program."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    words = (done.stdout or done.stderr).splitlines()[:1]
    return words[0].split(" Copyright")[0] if words else command[0]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
