# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When the node's capacity is published, with which amounts, and the use of memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.config.sections.kubernetes_capacity import KubeCapacityConfig
from controller.core.decision import Plan
from controller.core.model import CgroupId, QosClass, Snapshot, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, memory_bytes, online_cpus
from controller.host.memory import MemoryHierarchy
from controller.host.store import Store
from controller.kube.capacity import ForecastRecord
from controller.kube.cleanup import remove_overload_taint, write_taint_note
from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.extended_resources import STAMP
from controller.kube.forecast_store import ForecastStore
from controller.kube.reclaimable_capacity import ClusterCapacity, PublishPolicy
from controller.probes.memory_use import NonBestEffortMemory
from controller.workloads.pods.pod import Pod
from controller.workloads.pods.requests import extended_requests, parse_quantity
from tests.support.kube.api_stand_in import ApiStandIn, Asked, status
from tests.support.waiting import eventually

NODE = "/api/v1/nodes/n1"
CPU, MEMORY = "sweetpoint.dev/cpu", "sweetpoint.dev/memory"
LAYOUT = CgroupLayout(hierarchy="v2", mount=Path("/none"), version="v2", unified=Path("/none"))


def at(seconds: float) -> int:
    return round(seconds * NS_PER_SEC)


def test_small_changes_wait_for_the_heartbeat_and_large_ones_for_the_interval() -> None:
    policy = PublishPolicy(
        KubeCapacityConfig(interval_ns=at(10), heartbeat_ns=at(60), change_ratio=0.05)
    )
    assert policy.due({CPU: 1000}, at(0))
    policy.mark_published({CPU: 1000}, at(0))
    assert not policy.due({CPU: 500}, at(9))
    assert policy.due({CPU: 0}, at(1)), "an amount that falls to 0 does not wait for the interval"
    assert policy.due({CPU: 500}, at(10))
    assert not policy.due({CPU: 951}, at(59))
    assert not policy.due({CPU: 1049}, at(59))
    assert policy.due({CPU: 949}, at(59))
    assert policy.due({CPU: 1000}, at(60))
    policy.mark_published({CPU: 3}, at(60))
    assert policy.due({CPU: 0}, at(70))
    policy.mark_published({CPU: 0}, at(70))
    assert not policy.due({CPU: 0}, at(80))
    assert policy.due({CPU: 1}, at(80))
    policy.reset()
    assert policy.due({CPU: 0}, at(81))


class Clock:
    """Nanoseconds, advanced by the test; every read returns a later time, as with a real clock."""

    def __init__(self) -> None:
        self.now_ns = at(1000)
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.now_ns + self.reads


class Scene:
    """The control thread and the worker, with a server that also has nodes/status."""

    def __init__(
        self, server: ApiStandIn, api: Api, data_dir: Path, *, forecast: bool = False
    ) -> None:
        self.server = server
        server.before = self.route
        server.put(NODE, {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "4"}}})
        self.clock = Clock()
        self.refuse = False
        self.worker = Worker(api)
        config = KubeCapacityConfig(
            enabled=True, forecast=forecast, interval_ns=20_000_000, heartbeat_ns=1
        )
        self.wall_ns, self.store = 0, Store(data_dir)
        self.capacity = ClusterCapacity(
            api,
            self.worker,
            config,
            "n1",
            LAYOUT,
            self.store,
            self.clock,
            lambda: self.wall_ns,
        )
        self.system_ns = 0

    def route(self, asked: Asked) -> tuple[int, dict[str, Any]] | None:
        if self.refuse:
            return status(503, "not now")
        if asked.path.endswith("/status"):
            return self.server._act(asked._replace(path=asked.path.removesuffix("/status")))
        return None

    def tick(self, *pods: Pod, age_s: float | None = 0.0, enforcing: bool = True) -> None:
        self.clock.now_ns += at(1)
        self.system_ns += at(0.01)
        snapshot = Snapshot(
            time_ns=self.clock.now_ns,
            age_ns=None if age_s is None else at(age_s),
            workloads=(),
            system_oncpu_ns=self.system_ns,
        )
        plan = Plan(time_ns=self.clock.now_ns)
        self.capacity.update(snapshot, plan, (), pods, enforcing=enforcing)

    def found(self) -> dict[str, str]:
        capacity = self.server.objects[NODE]["status"]["capacity"]
        return {name: amount for name, amount in capacity.items() if "/" in name}

    def eventually(self, what: Callable[[], bool]) -> None:
        def check() -> bool:
            assert self.worker.failure is None
            return what()

        eventually("the capacity of the node", check)

    def let_the_worker_check(self) -> None:
        """Wait until the worker checked some times whether a request is due."""
        reads = self.clock.reads
        self.eventually(lambda: self.clock.reads >= reads + 5)


@pytest.fixture
def server() -> Iterator[ApiStandIn]:
    with ApiStandIn() as server:
        yield server


@pytest.fixture
def context(server: ApiStandIn, tmp_path: Path) -> Iterator[Scene]:
    context = Scene(server, Api(server.kubeconfig(tmp_path / "kubeconfig")), tmp_path / "data")
    yield context
    context.worker.close()
    assert context.worker.failure is None


def pod(name: str, **more: Any) -> Pod:
    return Pod(uid=name, namespace="n", name=name, qos_class="BestEffort", priority=0, **more)


def test_amounts_are_at_least_those_granted_and_removed_at_the_end(
    context: Scene,
) -> None:
    requests = {CPU: 1, MEMORY: memory_bytes() // 2}
    granted = (pod("a", requests=requests), pod("b", requests=requests, finished=True))
    for _ in range(5):
        context.tick(*granted)
    context.eventually(lambda: parse_quantity(context.found().get(MEMORY)) == memory_bytes() // 2)
    context.eventually(lambda: int(context.found()[CPU]) > 1)  # rising
    state = {each.resource: each for each in context.capacity.state}
    assert state[MEMORY].granted == memory_bytes() // 2
    assert not state[MEMORY].stale
    context.capacity.withdraw()
    context.eventually(lambda: context.found() == {})
    assert STAMP not in context.server.objects[NODE]["metadata"]["annotations"]


def test_the_offer_is_bounded_by_the_host_whatever_pods_request(context: Scene) -> None:
    greedy = extended_requests(
        {
            "containers": [
                {"resources": {"limits": {CPU: "1E", MEMORY: "1E"}}},
            ]
            * 1000
        }
    )
    for _ in range(5):
        context.tick(pod("greedy", requests=greedy))
    context.eventually(
        lambda: (
            [parse_quantity(each) for each in context.found().values()]
            == [1000 * len(online_cpus()), memory_bytes()]
        )
    )


def test_without_probe_data_or_control_thread_nothing_is_offered(context: Scene) -> None:
    granted = pod("a", requests={CPU: 1500})
    for _ in range(30):
        context.tick(granted)
    context.eventually(lambda: context.found().get(CPU, "0") != "0")
    for age_s in (None, 11.0) * 6:
        context.tick(granted, age_s=age_s)
    context.eventually(lambda: context.found()[CPU] == "0")
    assert context.found()[MEMORY] != "0"  # computed without a probe
    for _ in range(5):
        context.tick(granted)
    context.eventually(lambda: context.found()[CPU] != "0")
    context.clock.now_ns += at(11)
    context.eventually(lambda: context.found() == {CPU: "0", MEMORY: "0"})


def test_in_observe_mode_nothing_is_offered_and_an_earlier_offer_is_removed(
    context: Scene,
) -> None:
    stamp = '{"resources": {"sweetpoint.dev/cpu": "900"}}'
    context.server.put(
        NODE,
        {
            "metadata": {"name": "n1", "annotations": {STAMP: stamp}},
            "status": {"capacity": {"cpu": "4", CPU: "900"}},
        },
    )
    context.tick(enforcing=False)
    context.eventually(lambda: context.found() == {})
    for _ in range(5):
        context.tick(enforcing=False)
    assert context.capacity.state[0].amount > 0  # the amount that would be offered
    requests = len(context.server.asked)
    context.let_the_worker_check()
    assert len(context.server.asked) == requests


def test_an_earlier_offer_stays_until_the_first_tick(server: ApiStandIn, tmp_path: Path) -> None:
    context = Scene(server, Api(server.kubeconfig(tmp_path / "kubeconfig")), tmp_path / "data")
    stamp = '{"resources": {"sweetpoint.dev/cpu": "900"}}'
    context.server.put(
        NODE,
        {
            "metadata": {"name": "n1", "annotations": {STAMP: stamp}},
            "status": {"capacity": {"cpu": "4", CPU: "900"}},
        },
    )
    context.let_the_worker_check()
    assert context.found() == {CPU: "900"}
    for _ in range(2):
        context.tick(pod("a", requests={CPU: 1500}))
    context.eventually(lambda: context.found().get(CPU) == "1500")
    context.worker.close()


def test_amounts_are_published_after_the_server_returns(context: Scene) -> None:
    context.refuse = True
    context.tick()
    context.tick()
    context.eventually(lambda: bool(context.worker.errors))
    assert context.found() == {}
    context.refuse = False
    context.eventually(lambda: CPU in context.found())


@pytest.mark.parametrize("forecast", [True, False])
def test_the_forecast_is_kept_and_limits_the_offer_if_configured(
    server: ApiStandIn, tmp_path: Path, forecast: bool
) -> None:
    data, api = tmp_path / "data", Api(server.kubeconfig(tmp_path / "kubeconfig"))
    busy = ForecastRecord(168, 168, 2, (((49, 3600),),) * 168)
    store = Store(data)
    ForecastStore(store).write({"cpu": busy})
    store.close()
    context = Scene(server, api, data, forecast=forecast)
    for _ in range(600):
        context.tick()
    cpu, memory = context.capacity.state
    capacity = 1000 * len(online_cpus())
    assert (cpu.expected, cpu.forecast_hours, cpu.broken_hours) == (capacity // 2, 168, 2)
    assert cpu.amount == pytest.approx((0.4 if forecast else 0.88) * capacity, rel=0.02)
    assert memory.expected is None
    context.worker.close()


def test_an_hour_of_the_clock_becomes_a_part_of_the_forecast(context: Scene) -> None:
    for minute in range(61):
        context.wall_ns = at(60 * minute)
        context.clock.now_ns += at(59)
        context.tick(enforcing=False)
    context.wall_ns = at(24 * 3600)
    context.tick(enforcing=False)
    assert context.capacity.state[0].expected == 10 * len(online_cpus())  # the first bucket
    context.store.close()
    kept = ForecastStore(context.store).read()
    assert {kind: each.hours for kind, each in kept.items()} == {"cpu": 1, "memory": 1}


def test_release_removes_the_amounts_after_the_agent_has_ended(
    context: Scene, server: ApiStandIn, tmp_path: Path
) -> None:
    context.tick(pod("a", requests={CPU: 1500}))
    context.tick(pod("a", requests={CPU: 1500}))
    context.eventually(lambda: CPU in context.found())
    context.worker.close()
    write_taint_note(tmp_path, "n1", tmp_path / "kubeconfig")
    done, text = remove_overload_taint(tmp_path)
    assert done and text.endswith("; reclaimable capacity was removed")
    assert context.found() == {}


def workload(number: int) -> Workload:
    cgroup = CgroupId("v2", number)
    return Workload(f"w{number}", cgroup, f"/w{number}", QosClass.BE, "", "")


def test_non_best_effort_memory_is_neither_available_nor_used_by_best_effort(
    tmp_path: Path,
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(
        "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\nHugePages_Total: 0\n"
    )
    for number in range(60):
        (tmp_path / f"w{number}").mkdir()
        text = "anon 1024\nshmem 2048\ninactive_file 900\nactive_file 90\nfile_dirty 0\n"
        (tmp_path / f"w{number}" / "memory.stat").write_text(text)
        (tmp_path / f"w{number}" / "memory.current").write_text(f"{4096 + 990}\n")
    workloads = [workload(number) for number in range(60)]
    meter = NonBestEffortMemory(MemoryHierarchy("v2", tmp_path), meminfo)
    assert meter.poll(()) == 600 << 10
    # Each poll reads 20 workloads; the others count as non-best-effort until they are read.
    assert meter.poll(workloads) == (600 - 20 * 4) << 10
    meter.poll(workloads)
    assert meter.poll(workloads) == (600 - 60 * 4) << 10
    (tmp_path / "w3" / "memory.current").unlink()
    for _ in range(3):
        found = meter.poll(workloads)
    assert found == (600 - 59 * 4) << 10
    assert meter.poll(workloads[:10]) == (600 - 9 * 4) << 10
    meminfo.write_text("MemTotal:  1000 kB\n")
    assert meter.poll(workloads) is None


def test_non_best_effort_memory_of_a_v1_hierarchy(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    (tmp_path / "w1").mkdir()
    text = "active_file 1\ntotal_active_file 512\ntotal_inactive_file 512\n"
    (tmp_path / "w1" / "memory.stat").write_text(text)
    (tmp_path / "w1" / "memory.usage_in_bytes").write_text("4096\n")
    meter = NonBestEffortMemory(MemoryHierarchy("v1", tmp_path), meminfo)
    assert meter.poll([workload(1)]) == 597 << 10
