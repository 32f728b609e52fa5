# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Why a service is slow, beside a real agent: known causes one after the other, two together."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import socket
import threading

import pytest

from controller.core.decision import SlowBecause
from tests.kernel.agent import AgentRun, Site
from tests.kernel.explaining import Explain
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.apart,
    pytest.mark.thorough,
    pytest.mark.usefixtures("alone_on_cpu"),
]

FIGURE = """\
name: nginx
indicators:
  service: {sweet_point: 20ms}
sched_idle: false
"""


class Slow:
    """The verdicts on ``web`` while an agent runs on *site*."""

    def __init__(self, site: Site) -> None:
        self.site = site
        # Before the rest of this machine, so that its waits are those of the test.
        outweigh(site.root, 200)
        site.tighten()
        # Nothing that the agent does changes the cause.
        observing = site.config.read_text().replace("mode: enforce", "mode: observe")
        site.config.write_text(observing)
        self.shop = self._add("shop, class: latency-sensitive, profile: nginx")
        self.backup = self._add("backup, class: system")
        self.seen: set[SlowBecause] = set()

    def _add(self, workload: str) -> Path:
        name, text = workload.partition(",")[0], self.site.config.read_text()
        path = self.site.root / name
        path.mkdir()
        line = f"  - {{cgroup: {self.site.path(path)}, name: {workload}}}\n"
        self.site.config.write_text(text.replace("profiles:", f"{line}profiles:"))
        return path

    def limit(self) -> None:
        """Give the service a limit of 3 % of a CPU."""
        name, value = "cpu.max", "3000 100000"
        if self.site.layout.version == "v1":
            name, value = "cpu.cfs_quota_us", "3000"
        (self.site.service / name).write_text(value)

    def wait_for(self, text: str, agent: AgentRun, cgroup: Path, jobs: int = 1) -> None:
        """Let *jobs* work in *cgroup* until a verdict was told that begins with *text*."""

        def is_told() -> bool:
            return any(each["text"].startswith(f"slow ({text}") for each in self._look(agent))

        work = [Load(self.site.service, "bursts", CPU), *[Load(cgroup, "hog", CPU)] * jobs]
        with loads(work) as running:
            running.work_until(text, is_told)

    def wait_for_none(self, agent: AgentRun) -> None:
        """Work alone until a verdict was told that names no workload.

        The rest of the machine works too, so that it may be named, or the host.
        """
        verdicts = tuple(f"slow ({text}" for text in ("elsewhere)", "other-work /", "host)"))

        def is_told() -> bool:
            return any(each["text"].startswith(verdicts) for each in self._look(agent))

        with loads([Load(self.site.service, "bursts", CPU)]) as running:
            running.work_until("a verdict without a workload", is_told)

    def _look(self, agent: AgentRun) -> list[dict[str, str]]:
        """Return what *agent* told, after a look at its present verdicts."""
        page = agent.status()
        found = [each for each in page["plan"]["slow"] if each["service"] == "web"]
        self.seen |= {SlowBecause(each["because"]) for each in found}
        decisions: list[dict[str, str]] = page["decisions"]
        return decisions


@pytest.fixture
def slow(site: Site) -> Slow:
    return Slow(site)


@contextlib.contextmanager
def pushing(site: Site, value: str) -> Iterator[None]:
    """Push *value* as the figure of the service, which has no other indicator."""
    path, ended = site.home / "push.sock", threading.Event()
    (site.home / "tight.yaml").write_text(FIGURE)
    with site.config.open("a") as config:
        config.write(f"service_level:\n  socket: {path}\n  services:\n")
        config.writelines(f"    {name}: {{push: {{}}, unit: ms}}\n" for name in ("web", "shop"))

    def push() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            while not ended.wait(0.1):
                with contextlib.suppress(OSError):  # the agent does not listen yet, or any more
                    sender.sendto(f"web {value}".encode(), str(path))

    pusher = threading.Thread(target=push)
    pusher.start()
    try:
        yield
    finally:
        ended.set()
        pusher.join()


def test_work_that_makes_a_service_wait(slow: Slow, capsys: pytest.CaptureFixture[str]) -> None:
    site = slow.site
    with AgentRun(site) as agent:
        agent.ready()
        slow.wait_for(f"other-work {site.path(site.bystander)}", agent, site.bystander)
        slow.wait_for("other-work backup", agent, slow.backup)
        slow.wait_for("another-service shop", agent, slow.shop)
        assert SlowBecause.BEST_EFFORT not in slow.seen
        slow.wait_for("best-effort batch:one", agent, site.batch[0])
        assert agent.stop() == 0
    told = Explain(site, capsys).text("web")
    assert "slow (another-service shop): " in told and "slow (best-effort batch:one): " in told


def test_a_service_that_hurts_itself(slow: Slow) -> None:
    with AgentRun(slow.site) as agent:
        agent.ready()
        slow.wait_for("own-tasks", agent, slow.site.service, jobs=4)
        slow.limit()
        # Also beside best-effort work.
        slow.wait_for("own-cpu-limit", agent, slow.site.batch[0])
        assert agent.stop() == 0


def test_a_service_of_which_only_its_own_figure_is_known(slow: Slow) -> None:
    with pushing(slow.site, "80"), AgentRun(slow.site) as agent:
        agent.ready()
        slow.wait_for("best-effort batch:one", agent, slow.site.batch[0])
        assert agent.stop() == 0


def test_a_service_that_is_slow_for_a_reason_elsewhere(slow: Slow) -> None:
    with pushing(slow.site, "80"), AgentRun(slow.site) as agent:
        agent.ready()
        slow.wait_for("elsewhere", agent, slow.site.service, jobs=0)
        # Then best-effort work is the cause, and after it another service.
        slow.wait_for("best-effort batch:one", agent, slow.site.batch[0])
        slow.wait_for("another-service shop", agent, slow.shop)
        # Its own limit counts before the work of others.
        slow.limit()
        slow.wait_for("own-cpu-limit", agent, slow.shop)
        assert agent.stop() == 0
