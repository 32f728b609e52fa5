# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reclaimable capacity: CPU and memory of this node that are offered to best-effort pods.

The control thread computes the amounts, the worker's thread publishes them as extended resources.
Capacity is offered in mode enforce only, because the pods that use it must be squeezed when the
services need the node again.
"""

from collections.abc import Callable, Iterable
import logging
import time
from typing import NamedTuple

from controller.config.sections.kubernetes_capacity import KubeCapacityConfig
from controller.core.decision import Plan
from controller.core.model import QosClass, Snapshot, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, memory_bytes, online_cpus
from controller.host.memory import find_memory
from controller.host.store import Store
from controller.kube.capacity import Forecast, NonBestEffortUse, Reclaimable
from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.extended_resources import NodeResources, remove_resources
from controller.kube.forecast_store import ForecastStore
from controller.kube.state import ReclaimState
from controller.probes.memory_use import NonBestEffortMemory
from controller.workloads.pods.pod import Pod

__all__ = ("ClusterCapacity", "PublishPolicy")

_log = logging.getLogger(__name__)

_JOB = "reclaimable capacity"
_EVERY_NS = NS_PER_SEC
# Longest interval at which the worker's thread checks whether a request is due.
_CHECK_NS = 5 * NS_PER_SEC
# Probe data, and amounts of the control thread, are stale after this time.
_STALE_NS = 10 * NS_PER_SEC
# Validity of the annotation in heartbeats, so that a reader tolerates missing ones.
_VALID_HEARTBEATS = 3


class PublishPolicy:
    """Decides when amounts are published, by the limits of ``KubeCapacityConfig``.

    A request is due after the heartbeat interval, at once if an amount falls to 0, and after the
    shorter interval if an amount changed by more than ``change_ratio``.
    """

    def __init__(self, config: KubeCapacityConfig) -> None:
        self._config = config
        self._published: dict[str, int] | None = None
        self._published_ns = 0

    def due(self, amounts: dict[str, int], now_ns: int) -> bool:
        """Return whether *amounts* are to be published at *now_ns*."""
        published, config = self._published, self._config
        if published is None or now_ns - self._published_ns >= config.heartbeat_ns:
            return True
        if any(amount == 0 and published[name] for name, amount in amounts.items()):
            return True  # an offer that cannot be kept is withdrawn at once
        if now_ns - self._published_ns < config.interval_ns:
            return False
        return any(
            abs(amount - published[name]) > config.change_ratio * published[name]
            for name, amount in amounts.items()
        )

    def mark_published(self, amounts: dict[str, int], now_ns: int) -> None:
        """Record that *amounts* were published at *now_ns*."""
        self._published, self._published_ns = amounts, now_ns

    def reset(self) -> None:
        """Record that nothing is published."""
        self._published = None


class _Offer(NamedTuple):
    """The amounts to publish, as of ``time_ns``; ``None``: none, and published ones are removed."""

    time_ns: int
    amounts: dict[str, int] | None


class ClusterCapacity:
    """Computes and publishes the reclaimable CPU and memory of the node.

    ``present``: whether the node may have resources of this agent, perhaps of an earlier run.
    ``update``, ``state`` and ``withdraw`` are for the control thread.

    :param store: where the forecasts of the use are kept.
    :param wall_ns: the time of day in ns since 1970.
    """

    def __init__(
        self,
        api: Api,
        worker: Worker,
        config: KubeCapacityConfig,
        node: str,
        layout: CgroupLayout,
        store: Store,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._api = api
        self._worker = worker
        self._config = config
        self._node = node
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self._memory = NonBestEffortMemory(find_memory(layout.unified))
        self._cpu_use = NonBestEffortUse()
        self._reclaimable = {"cpu": Reclaimable(config.cpu), "memory": Reclaimable(config.memory)}
        self._forecast_store = ForecastStore(store)
        past = self._forecast_store.read() if config.enabled else {}
        self._forecasts = {
            "cpu": Forecast(config.cpu.reserve_ratio, past.get("cpu")),
            "memory": Forecast(config.memory.reserve_ratio, past.get("memory")),
        }
        self._expected: dict[str, int | None] = {"cpu": None, "memory": None}
        self._granted = {"cpu": 0, "memory": 0}
        self._due_ns = 0
        self._resources = NodeResources(api, node)
        self._policy = PublishPolicy(config)
        self._logged_foreign: frozenset[str] = frozenset()
        self.present = True
        self._offer = _Offer(clock_ns(), None)
        # Whether the offer is one of the control thread, rather than the initial value.
        self._decided = False
        worker.submit_periodic(min(config.interval_ns, _CHECK_NS) / NS_PER_SEC, self._publish, _JOB)

    def update(
        self,
        snapshot: Snapshot,
        plan: Plan,
        workloads: tuple[Workload, ...],
        pods: Iterable[Pod],
        *,
        enforcing: bool,
    ) -> None:
        """Update with the measurements and the plan of this tick, and the pods of this node."""
        now_ns = snapshot.time_ns
        if not self._config.enabled:
            self._decided = True
            return
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _EVERY_NS
        names = self._config.names
        requests = [pod.requests for pod in pods if pod.requests and not pod.finished]
        self._granted = {
            "cpu": sum(each.get(names.cpu, 0) for each in requests),
            "memory": sum(each.get(names.memory, 0) for each in requests),
        }
        cpus = self._cpu_use.update(snapshot, workloads, _STALE_NS)
        memory = self._memory.poll(each for each in workloads if each.qos is QosClass.BE)
        squeezed_to = plan.quota_granted_cpus
        completed = self._step(
            "cpu",
            now_ns,
            1000.0 * len(online_cpus()),
            None if cpus is None else 1000.0 * cpus,
            None if squeezed_to is None else 1000.0 * squeezed_to,
        ) | self._step("memory", now_ns, float(memory_bytes()), memory)
        if completed:
            self._forecast_store.write({kind: f.record for kind, f in self._forecasts.items()})
        amounts = {
            name: int(self._reclaimable[kind].amount) for kind, name in names._asdict().items()
        }
        self._offer = _Offer(self._clock_ns(), amounts if enforcing else None)
        self._decided = True

    def _step(
        self,
        kind: str,
        now_ns: int,
        capacity: float,
        others: float | None,
        squeezed_to: float | None = None,
    ) -> bool:
        """Update one resource; return whether the forecast has another hour."""
        reclaimable, forecast = self._reclaimable[kind], self._forecasts[kind]
        wall_ns = self._wall_ns()
        expected = forecast.expected(wall_ns)
        self._expected[kind] = None if expected is None else int(expected.use_ratio * capacity)
        reclaimable.update(
            now_ns,
            capacity,
            others,
            self._granted[kind],
            squeezed_to,
            expected if self._config.forecast else None,
        )
        if others is None or reclaimable.used is None:
            return False
        return forecast.update(now_ns, wall_ns, reclaimable.used / capacity)

    @property
    def state(self) -> tuple[ReclaimState, ...]:
        """The state of each resource; empty if the offer is not enabled."""
        if not self._config.enabled:
            return ()
        foreign = self._resources.foreign
        return tuple(
            ReclaimState(
                resource=name,
                amount=int(self._reclaimable[kind].amount),
                granted=self._granted[kind],
                stale=self._reclaimable[kind].stale,
                foreign=name in foreign,
                expected=self._expected[kind],
                forecast_hours=self._forecasts[kind].judged,
                broken_hours=self._forecasts[kind].broken,
            )
            for kind, name in self._config.names._asdict().items()
        )

    def withdraw(self) -> None:
        """Remove all resources from the node, in the worker's thread, and offer none again."""
        self._offer = _Offer(self._clock_ns(), None)
        self._decided = True
        self._worker.submit(self._clear, _JOB, first=True)

    def _publish(self) -> None:
        # Runs in the worker's thread.
        offer, now_ns = self._offer, self._clock_ns()
        stale = now_ns - offer.time_ns > _STALE_NS
        if not self._decided and not stale:
            return  # until the first tick an earlier run's offer stays, with its time stamp
        amounts = offer.amounts
        if amounts is None:
            self._clear()
            return
        if stale:  # the control thread hangs
            amounts = dict.fromkeys(amounts, 0)
        if not self._policy.due(amounts, now_ns):
            return
        self.present = True  # before the request, which may fail although the change is made
        self._resources.publish(amounts, _VALID_HEARTBEATS * self._config.heartbeat_ns / NS_PER_SEC)
        self._policy.mark_published(amounts, now_ns)
        foreign = self._resources.foreign
        for name in sorted(foreign - self._logged_foreign):
            _log.warning("node %s: %s is foreign: left alone", self._node, name)
        self._logged_foreign = foreign

    def _clear(self) -> None:
        if self.present:
            self._policy.reset()
            if remove_resources(self._api, self._node):
                _log.info("node %s: no capacity is offered to best-effort pods now", self._node)
            self.present = False
