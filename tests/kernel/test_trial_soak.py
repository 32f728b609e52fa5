# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Trials with nginx and memcached: one where enforcing helps, and one of a profile that hurts.

In the first one an upload fills the link. The services report the p99 of their clients at its other
end. A tight port behind the host drops what exceeds it, so without tiers the upload takes the link.
In the second one jobs fill all CPUs, and the candidate no longer places them behind the services.
``SWEETPOINT_TRIAL_FOR`` and ``SWEETPOINT_TRIAL_BLOCK`` make them shorter.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import json
import os
from pathlib import Path
import socket
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any

import pytest

from controller.demo import programs
from controller.demo.programs import Process, start
from controller.host.facts import CgroupLayout
from controller.trial.blocks import Work
from tests.compare.link import HOST, NETWORK, SINK, Link
from tests.compare.services import SERVICES
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.netns import entered
from tests.kernel.overload import outweigh
from tests.support.cgroups import remove_cgroup
from tests.support.needs import needs_program
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.soak,
    needs_program("nginx"),
    needs_program("memcached"),
    needs_program("iperf3"),
]

FOR = os.environ.get("SWEETPOINT_TRIAL_FOR", "2h")
BLOCK = os.environ.get("SWEETPOINT_TRIAL_BLOCK", "2m")
CLIENT = Path(__file__).with_name("figure_client.py")
# Of these clients, alone on the link: well below. Beside the upload: ten times as much.
SWEET_POINT_MS = 10
PROFILE = f"""\
name: own
indicators:
  service: {{sweet_point: {SWEET_POINT_MS}ms}}
  net_backlog: {{sweet_point: 1ms}}
"""
# With the other profile jobs are neither placed behind the services nor limited.
_WAITS = "indicators: {runq_p99: {sweet_point: 2ms, min_samples: 0}}\nchannels: [cpu]\n"
CPU_PROFILES = {
    "own": f"name: own\n{_WAITS}",
    "loose": f"name: loose\n{_WAITS}sched_idle: false\nknobs: {{cpu.quota: {{floor: 1900mcpu}}}}\n",
}
LOOSE = "name: careless\nset: {replace_profiles: {own: loose}}\n"
# A transfer of iperf3 that ends with the test, and not before.
UPLOAD = f"while iperf3 -c {SINK} -t 600 -P 4 -C cubic >/dev/null; do :; done"


class LinkedSite(Site):
    """Two services and a job on a host with a link; sockets are told apart by cgroup2."""

    def __init__(self, root: Path, layout: CgroupLayout, home: Path) -> None:
        super().__init__(root, layout, home)
        self.store = self._make("store")
        outweigh(root)  # the figures are about the link, also on a busy machine
        assert layout.unified is not None, "no cgroup2 tree is mounted"
        self.sockets = layout.unified / self.path(root)[1:]
        for each in (self.service, self.store, self.batch[0]):
            self._place(each).mkdir(parents=True, exist_ok=True)
        self.push_path = home / "push.sock"

    def configure(self, profiles: Mapping[str, str], more: Mapping[str, object]) -> None:
        """Write the configuration, in which both services have the profile ``own``."""
        for name, text in profiles.items():
            (self.home / f"{name}.yaml").write_text(text)
        services = {"web": self.service, "store": self.store}
        batch = f"{self.path(self.root)}/batch/*"
        configuration = {
            "mode": "enforce",
            "http": f"127.0.0.1:{self.port}",
            "state_dir": f"{self.home}/state",
            "data_dir": f"{self.home}/data",
            "profiles": [f"{name}.yaml" for name in profiles],
            "workloads": [
                *(
                    {"name": name, "cgroup": self.path(path), "profile": "own"}
                    | {"class": "latency-sensitive"}
                    for name, path in services.items()
                ),
                {"name": "batch", "cgroup": batch, "class": "best-effort"},
            ],
            **more,
        }
        self.config.write_text(json.dumps(configuration))

    def _place(self, cgroup: Path) -> Path:
        return self.sockets / cgroup.relative_to(self.root)

    def join(self, cgroup: Path) -> Callable[[], None]:
        """Return what a child calls before exec: it enters *cgroup*, with its sockets."""
        files = [each / "cgroup.procs" for each in (cgroup, self._place(cgroup))]

        def enter() -> None:
            for file in files:
                file.write_text("0")

        return enter


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[LinkedSite]:
    site = LinkedSite(cgroup_root, cgroup_layout, tmp_path)
    try:
        yield site
    finally:
        remove_cgroup(site.sockets)


@contextlib.contextmanager
def served(site: LinkedSite, link: Link, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run both services, and clients of them whose figures the agent gets."""
    # Clients come over the link.
    everywhere = programs.NGINX_CONF.replace("127.0.0.1:", "0.0.0.0:")
    monkeypatch.setattr(programs, "NGINX_CONF", everywhere)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sweetpoint-test-"))
        home = Path(directory)
        home.chmod(0o755)  # nginx's workers run as another user and read the page here
        for name, service, cgroup in (
            ("web", SERVICES["nginx"], site.service),
            ("store", SERVICES["memcached-remote"], site.store),
        ):
            port = stack.enter_context(service.running(home, site.join(cgroup)))
            command = link.among_clients(
                (sys.executable, str(CLIENT), HOST, str(port), service.request)
            )
            stack.enter_context(pushed(site, name, command))
        yield


@contextlib.contextmanager
def pushed(site: LinkedSite, name: str, command: list[str]) -> Iterator[None]:
    """Run the client of the service *name*, and push each figure that it prints."""
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None

    def push(figures: IO[str]) -> None:
        with figures, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for line in figures:
                with contextlib.suppress(OSError):  # the agent does not listen yet
                    sender.sendto(f"{name} {line.strip()}".encode(), str(site.push_path))

    thread = threading.Thread(target=push, args=(client.stdout,))
    thread.start()
    try:
        yield
        assert client.poll() is None, f"the client of {name} ended"
    finally:
        client.kill()
        client.wait()
        thread.join()


@contextlib.contextmanager
def uploading(site: LinkedSite) -> Iterator[Process]:
    """Upload from the first job."""
    upload = start("upload", ("sh", "-c", UPLOAD), site.home, join=site.join(site.batch[0]))
    try:
        yield upload
        upload.check()
    finally:
        upload.stop()


def fresh(agent: AgentRun) -> set[str]:
    """Return the services whose own figure is known."""
    loops = agent.status()["plan"]["loops"]
    return {
        each["service"]
        for each in loops
        if each["indicator"] == "service" and each["value"] is not None
    }


def run_trial(site: LinkedSite, *options: str) -> tuple[int, dict[str, Any]]:
    """Run a trial to its end; return its exit code and what it says."""
    words = ["--config", str(site.config), "--for", FOR, "--block", BLOCK, "--json"]
    words += ["--report", str(site.home / "trial.html")]
    done = subprocess.run(
        [sys.executable, "-m", "controller.cli.main", "trial", *words, *options],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout)
    return done.returncode, json.loads(done.stdout)


def test_enforcing_helps_and_the_trial_says_so(
    site: LinkedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushes = {name: {"push": {}, "unit": "ms"} for name in ("web", "store")}
    figures = {"socket": str(site.push_path), "services": pushes}
    site.configure({"own": PROFILE}, {"network": NETWORK, "service_level": figures})
    with (
        entered("/proc/self/ns/net"),
        Link(site.home) as link,
        served(site, link, monkeypatch),
        AgentRun(site) as agent,
    ):
        agent.ready()
        eventually("figures of both services", lambda: fresh(agent) == {"web", "store"})
        with uploading(site):
            # What the services suffer in paused blocks is what is measured.
            code, found = run_trial(site, "--most-harm", "100%")
            assert (code, found["ended"]) == (0, "")
            eventually("no pause", lambda: agent.status()["pauses"] == [])
        assert agent.stop() == 0
    verdicts = {each["name"]: each["verdict"] for each in found["findings"]}
    assert Work.NETWORK in verdicts, "what the upload lost is not told"
    assert verdicts["web"] == verdicts["store"] == "better", verdicts


def test_a_profile_that_hurts_is_stopped_within_two_blocks(
    site: LinkedSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site.configure(CPU_PROFILES, {})
    candidate = tmp_path / "careless.yaml"
    candidate.write_text(LOOSE)
    outweigh(site.root / "batch")  # so the services wait long where jobs are not behind them
    jobs = [Load(cgroup, "hog", cpu) for cgroup in site.batch for cpu in os.sched_getaffinity(0)]
    with (
        entered("/proc/self/ns/net"),
        Link(site.home) as link,
        served(site, link, monkeypatch),
        AgentRun(site) as agent,
        loads(jobs) as running,
    ):
        agent.ready().enforcing()
        running.start()
        code, found = run_trial(site, "--against", str(candidate))
        eventually("the profile of before", lambda: profiles_of(agent) == {"own"})
        eventually("the jobs behind the services", site.protected)
        eventually("no pause", lambda: agent.status()["pauses"] == [])
        assert agent.stop() == 0
    assert code == 1
    assert "enforcing with careless hurts" in found["ended"]
    # It has no effect in its first blocks without the candidate, and one pair may be complete.
    assert all(each["pairs"] <= 1 for each in found["findings"])


def profiles_of(agent: AgentRun) -> set[str]:
    """Return the profiles of the services."""
    workloads = agent.status()["workloads"]
    return {each["profile"] for each in workloads if each["qos"] == "latency-sensitive"}
