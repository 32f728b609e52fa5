# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A place for a node whose process 1 is systemd, as in a container; for pure cgroup v2."""

from collections.abc import Sequence
import contextlib
from dataclasses import dataclass
import os
from pathlib import Path
import select
import shlex
import signal

from controller.demo.cgroups import DemoError
from tests.kube.asking import answer
from tests.kube.own_host import OwnHost, Running
from tests.support.cgroups import children_of
from tests.support.waiting import DEADLINE_S

__all__ = ("SystemdHost",)

_UNITS = "/run/systemd/system"
# Where systemd looks for units: also those that it writes itself for a client such as runc, which
# a reload would lose otherwise, and with them their controllers.
_UNIT_PATH = f"/run/systemd/system.control:/run/systemd/transient:{_UNITS}"
_UNIT = """\
[Unit]
StartLimitIntervalSec=0
DefaultDependencies=no
[Service]
Type=exec
ExecStart={command}
StandardError=append:{log}
Delegate=yes
KillMode=process
"""


class SystemdHost(OwnHost):
    """Namespaces, also of processes, with systemd as process 1; its programs are its services.

    No unit of the machine is started. systemd logs to the kernel's log.
    """

    namespaces = (*OwnHost.namespaces, "--pid")

    def __enter__(self) -> "SystemdHost":
        super().__enter__()
        try:
            answer("systemd", self._is_running)
        except BaseException:
            self.close()
            raise
        return self

    def systemctl(self, *arguments: str) -> str:
        """Return what ``systemctl`` prints."""
        # Without it, systemctl takes a systemd that does not answer for 25 s for dead.
        return self.run("env", f"SYSTEMD_BUS_TIMEOUT={DEADLINE_S:g}", "systemctl", *arguments)

    def start(self, name: str, command: Sequence[str]) -> Running:
        """Start *command* as the service *name*; its log is ``NAME.err`` in ``home``."""
        log = self.home / f"{name}.err"
        path, *arguments = command
        if path == "env":
            path = "/usr/bin/env"
        text = _UNIT.format(command=shlex.join((path, *arguments)), log=log)
        self.start_unit(f"{name}.service", text)
        inner = self.systemctl("show", "--property=MainPID", "--value", name).strip()
        members = self.cgroup("", f"system.slice/{name}.service") / "cgroup.procs"
        pids = (pid for pid in members.read_text().split() if _inner_pid(pid) == inner)
        pid = next(pids, None)
        assert pid is not None, f"{name} has ended already"
        return _Service(name=name, pidfd=os.pidfd_open(int(pid)), log=log)

    def start_unit(self, name: str, text: str) -> None:
        """Start a unit whose file has the content *text*."""
        self.file(f"{_UNITS}/{name}").write_text(text)
        self.systemctl("start", name)

    def find_init(self, holder: int) -> int:
        (child,) = children_of(holder)
        return child

    def mounts(self) -> list[str]:
        return [
            "mount -t proc proc /proc",
            *super().mounts(),
            f"mkdir -p {_UNITS}",
            f"echo [Unit] | tee {_UNITS}/default.target > {_UNITS}/shutdown.target",
        ]

    def init(self) -> str:
        # No unit of the machine exists for it, and no generator, which would take seconds.
        environment = f"container=test SYSTEMD_UNIT_PATH={_UNIT_PATH}"
        for kind in ("GENERATOR", "ENVIRONMENT_GENERATOR"):
            environment += f" SYSTEMD_{kind}_PATH={_UNITS}/none"
        options = "--system --unit=default.target --log-target=kmsg --show-status=no"
        return f"env {environment} /lib/systemd/systemd {options}"

    def _is_running(self) -> bool:
        return self.systemctl("is-system-running").strip() == "running"


def _inner_pid(pid: str) -> str:
    status = Path(f"/proc/{pid}/status").read_text()
    return status.partition("NSpid:")[2].partition("\n")[0].split()[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Service:
    """The main process of a service."""

    name: str
    pidfd: int
    log: Path

    def check(self) -> None:
        if self._ended(0):
            words = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise DemoError(f"{self.name} ended: {' | '.join(words)}")

    def stop(self, signum: int, within_s: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signum)
        if not self._ended(within_s):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self._ended(within_s)
        os.close(self.pidfd)

    def _ended(self, within_s: float) -> bool:
        return bool(select.select([self.pidfd], [], [], within_s)[0])
