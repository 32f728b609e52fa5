# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of the demonstration: a service and best-effort jobs, and their units of work.

The service is nginx with two workers and one small file. The best-effort jobs are an endless
video encoding with ffmpeg (work: frames) and stress-ng as the harsh case (work: bogo operations
of the CPU stressor), with many computing threads and continuous forks. Processes that only switch
contexts are not part of it: Linux 6.18 was seen to charge those only when they end, so that others
starved for seconds.
"""

from collections.abc import Callable, Sequence
import contextlib
from dataclasses import dataclass
import http.client
import os
from pathlib import Path
import random
import re
import signal
import socket
import subprocess
import time
from typing import IO

from controller.demo.cgroups import DemoError
from controller.host.facts import die_with_parent, libc

__all__ = ("BestEffort", "Process", "best_effort_jobs", "free_port", "start", "start_nginx")

# A busy machine starts a program in seconds.
START_WITHIN_S = 30.0
STOP_WITHIN_S = 5.0
BIND_TRIES = 3
# The first and the last port of outgoing connections, of all addresses (ip(7)).
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FEW_PORTS = 4096
PAGE_BYTES = 1024
NGINX_CONF = """\
daemon off;
worker_processes 2;
pid {home}/nginx.pid;
error_log {home}/nginx.log warn;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    keepalive_requests 1000000000;  # the default closes a connection after 1,000 requests
    keepalive_timeout 1h;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    server {{
        listen 127.0.0.1:{port} reuseport;
        root {home}/www;
    }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A running program; ``log`` is the file with its stderr."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Check that the program runs.

        :raises DemoError: it ended; the message has its last three lines on stderr.
        """
        if (code := self.popen.poll()) is not None:
            words = self.log.read_text(errors="replace").strip().splitlines()[-3:]
            raise DemoError(f"{self.name} ended with {code}: {' | '.join(words) or 'no message'}")

    def stop(self, signum: int = signal.SIGTERM, within_s: float = STOP_WITHIN_S) -> None:
        """Send *signum*, and SIGKILL if the program does not end within *within_s*."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(signum)
        try:
            self.popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def start(
    name: str,
    command: Sequence[str],
    home: Path,
    *,
    join: Callable[[], None] | None = None,
    stdout: IO[bytes] | None = None,
    dies_by: int = signal.SIGKILL,
) -> Process:
    """Start *command* in a session of its own; it gets the signal *dies_by* if this process dies.

    *join* runs in the child before exec, to enter a cgroup.

    :raises DemoError: the program cannot be started.
    """
    libc()  # loaded here, because prepare() runs between fork and exec

    def prepare() -> None:
        die_with_parent(dies_by)
        if join is not None:
            join()

    log = home / f"{name}.err"
    try:
        with log.open("ab") as err:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout or subprocess.DEVNULL,
                stderr=err,
                cwd=home,
                start_new_session=True,  # Ctrl-C is only for this process, which stops the children
                preexec_fn=prepare,
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise DemoError(f"cannot start {name}: {error}") from error
    return Process(name=name, popen=popen, log=log)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free at the time of the call.

    It is not one of those that the kernel gives to outgoing connections, if there are others.
    Otherwise any connection could take it before a program listens on it.
    """
    first = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    while True:
        port = random.randrange(first // 2, first) if first > _FEW_PORTS else 0  # noqa: S311
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])


def start_nginx(
    home: Path, join: Callable[[], None] | None = None, port_of: Callable[[], int] = free_port
) -> tuple[Process, int]:
    """Start nginx in the foreground and return it with its port as soon as it serves.

    :raises DemoError: nginx does not start on any of three ports.
    """
    (home / "www").mkdir(exist_ok=True)
    page = os.urandom(PAGE_BYTES // 2).hex().encode()
    (home / "www" / "page").write_bytes(page)
    for attempt in range(BIND_TRIES):
        port = port_of()
        (home / "nginx.conf").write_text(NGINX_CONF.format(home=home, port=port))
        command = ["nginx", "-p", str(home), "-c", "nginx.conf", "-e", str(home / "nginx.log")]
        nginx = start("nginx", command, home, join=join)
        try:
            _wait_until_it_serves(nginx, port, page)
        except DemoError:
            nginx.stop(signal.SIGKILL)
            if attempt == BIND_TRIES - 1:
                raise
        else:
            return nginx, port
    raise AssertionError("unreachable")


def _wait_until_it_serves(nginx: Process, port: int, page: bytes) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline_s:
        nginx.check()
        # The page is random: another server on this port may answer while nginx tries to bind.
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
            with contextlib.closing(connection):
                connection.request("GET", "/page")
                if connection.getresponse().read() == page:
                    return
        time.sleep(0.05)
    raise DemoError(f"{nginx.name} does not serve on port {port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEffort:
    """A best-effort job.

    ``command`` returns the command line for an output file, ``work`` the work done according to
    the text of that file, in ``unit``; ``None`` if the text has none. On the signal ``stop_by``
    the program ends and writes the file.
    """

    name: str
    unit: str
    command: Callable[[Path], list[str]]
    work: Callable[[str], float | None]
    stop_by: int

    @property
    def cgroup(self) -> str:
        """Name of the cgroup of the job."""
        return f"be-{self.name}"


def best_effort_jobs(choice: str) -> tuple[BestEffort, ...]:
    """Return the jobs for *choice*: ``both`` or the name of a job."""
    return tuple(job for job in _JOBS if choice in ("both", job.name))


def _ffmpeg(output: Path) -> list[str]:
    cpus = os.cpu_count() or 1
    source = "testsrc2=size=1280x720:rate=30"
    command = ["ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "error", "-y"]
    command += ["-f", "lavfi", "-i", source, "-c:v", "libx264", "-preset", "slow"]
    command += ["-threads", str(cpus * 4), "-progress", f"file:{output}", "-f", "null", "-"]
    return command


def _stress_ng(output: Path) -> list[str]:
    cpus = os.cpu_count() or 1
    command = ["stress-ng", "--cpu", str(8 * cpus), "--fork", str(cpus)]
    return [*command, "--metrics", "--yaml", str(output)]


def _frames(output: str) -> float | None:
    frames = re.findall(r"^frame=\s*(\d+)$", output, re.MULTILINE)
    return float(frames[-1]) if frames else None


def _bogo_ops(output: str) -> float | None:
    found = re.search(r"stressor: cpu\n\s+bogo-ops: (\d+)", output)
    return float(found[1]) if found else None


_JOBS = (
    BestEffort(name="ffmpeg", unit="frames", command=_ffmpeg, work=_frames, stop_by=signal.SIGTERM),
    BestEffort(
        name="stress-ng", unit="ops", command=_stress_ng, work=_bogo_ops, stop_by=signal.SIGINT
    ),
)
