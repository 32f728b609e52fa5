# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that a demonstration starts or creates, and its end, whatever happens.

Leaving a ``Session`` stops its programs, empties and removes its cgroups and deletes its
directory. Should this process be killed, a janitor does the same: a child in a session of its
own that sleeps on a pipe which ends with us.

What the demonstration needs of a host, and a record of the host that it ran on.
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
from typing import Self

from controller.demo.agent import Agent
from controller.demo.cgroups import DemoCgroups
from controller.demo.programs import BestEffort, Process
from controller.doctor import examine
from controller.host.facts import online_cpus

__all__ = (
    "Interrupted",
    "Session",
    "describe",
    "interruptible",
    "missing_for",
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# An orphaned agent restores within 2 s; its cgroups should still be there then.
JANITOR_GRACE_S = 2.0
ORDERLY_STOP_S = 2.0


class Interrupted(BaseException):
    """A signal asked the demonstration to end. Not an error, so nothing else catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into ``Interrupted``; later ones are ignored.

    The block must contain the clean-up: an impatient second Ctrl-C must not end that.
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
    """Owns a temporary directory ``home``, the ``cgroups`` and the started programs.

    Use it inside ``interruptible``, which gives the signals back.
    """

    def __init__(self, cgroups: DemoCgroups) -> None:
        self.cgroups = cgroups
        self.home = Path("/nonexistent")
        self.agent: Agent | None = None
        self._processes: list[Process] = []
        self._janitor: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        try:
            self.home = Path(tempfile.mkdtemp(prefix="sweetpoint-demo-"))
            self.home.chmod(0o755)  # nginx's workers are another user and read their page here
            self._janitor = self._start_janitor()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # signal.signal() itself may deliver one that is pending.
        try:
            _ignore_signals()
        finally:
            self._clean_up()

    def own(self, process: Process) -> Process:
        """Take over a process that is to be stopped at the end."""
        self._processes.append(process)
        return process

    def disown(self, process: Process) -> None:
        """Forget a process that was stopped."""
        self._processes.remove(process)

    def start_agent(self, mode: str, **profile: str | bool) -> Agent:
        """Start the agent in *mode* and wait until it measures; stops a former one.

        :raises DemoError: it does not start.
        """
        self.stop_agent()
        self.agent = Agent(self.home, self.cgroups.path, mode, **profile)
        self.agent.wait_until_ready()
        return self.agent

    def stop_agent(self) -> None:
        """Stop the agent, if there is one."""
        if self.agent is not None:
            self.agent.stop()
            self.agent = None

    def check(self) -> None:
        """Do nothing while all programs run.

        :raises DemoError: one of them ended.
        """
        for process in self._processes:
            process.check()
        if self.agent is not None:
            self.agent.process.check()

    def _clean_up(self) -> None:
        with contextlib.ExitStack() as last_to_first:
            last_to_first.callback(self._dismiss_janitor)
            last_to_first.callback(shutil.rmtree, self.home, ignore_errors=True)
            last_to_first.callback(self.cgroups.remove)
            for process in self._processes:
                # In good order: nginx and stress-ng bury their own children.
                last_to_first.callback(process.stop, signal.SIGTERM, ORDERLY_STOP_S)
            last_to_first.callback(self.stop_agent)

    def _start_janitor(self) -> tuple[int, int]:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(write_end)
            try:
                self._be_janitor(read_end)
            finally:
                os._exit(0)
        os.close(read_end)
        return pid, write_end

    def _be_janitor(self, read_end: int) -> None:
        os.setsid()
        _ignore_signals()
        if os.read(read_end, 1):
            return
        time.sleep(JANITOR_GRACE_S)
        try:
            self.cgroups.remove()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def _dismiss_janitor(self) -> None:
        if self._janitor is not None:
            pid, write_end = self._janitor
            with contextlib.suppress(BrokenPipeError):
                os.write(write_end, b".")
            os.close(write_end)
            os.waitpid(pid, 0)
            self._janitor = None


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
