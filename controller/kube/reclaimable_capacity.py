# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What of this node is offered to best-effort pods: followed by the control thread, published by
the worker's.

Only an agent that enforces offers anything: the pods that come for it have to be held back when
the services need the node again.
"""

from collections.abc import Callable, Iterable
import logging
import time
from typing import NamedTuple

from controller.config.sections.kubernetes_capacity import KubeCapacityConfig
from controller.core.control.reclaimable import NonBestEffortUse, Reclaimable
from controller.core.decision import Plan
from controller.core.model import QosClass, Snapshot, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, memory_bytes, online_cpus
from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.extended_resources import NodeResources, remove_resources
from controller.kube.state import ReclaimState
from controller.probes.cgroup_usage import NonBestEffortMemory, find_memory
from controller.workloads.pods.pod import Pod

__all__ = ("ClusterCapacity", "PublishPolicy")

_log = logging.getLogger(__name__)

_JOB = "reclaimable capacity"
_EVERY_NS = NS_PER_SEC
# How often the worker's thread looks whether there is something to tell.
_LOOK_NS = 5 * NS_PER_SEC
# Probe data, and what the control thread said last, is worth nothing after this time.
_STALE_NS = 10 * NS_PER_SEC
# Whoever reads the stamp may miss this many heartbeats.
_VALID_HEARTBEATS = 3


class PublishPolicy:
    """Decides when amounts are worth a request: see ``KubeCapacityConfig``."""

    def __init__(self, config: KubeCapacityConfig) -> None:
        self._config = config
        self._told: dict[str, int] | None = None
        self._told_ns = 0

    def due(self, amounts: dict[str, int], now_ns: int) -> bool:
        """Return whether *amounts* are to be told, at *now_ns*."""
        told, config = self._told, self._config
        if told is None or now_ns - self._told_ns >= config.heartbeat_ns:
            return True
        if any(amount == 0 and told[name] for name, amount in amounts.items()):
            return True  # what cannot be kept is not promised a moment longer
        if now_ns - self._told_ns < config.interval_ns:
            return False
        return any(
            abs(amount - told[name]) > config.change_ratio * told[name]
            for name, amount in amounts.items()
        )

    def mark_published(self, amounts: dict[str, int], now_ns: int) -> None:
        """Remember that *amounts* were told."""
        self._told, self._told_ns = amounts, now_ns

    def reset(self) -> None:
        """Forget what was told: it is no longer there."""
        self._told = None


class _Offer(NamedTuple):
    """What is to be on the node, as of ``time_ns``; ``None``: nothing."""

    time_ns: int
    amounts: dict[str, int] | None


class ClusterCapacity:
    """Follows CPU and memory; ``update``, ``state`` and ``withdraw`` are the control thread's."""

    def __init__(
        self,
        api: Api,
        worker: Worker,
        config: KubeCapacityConfig,
        node: str,
        layout: CgroupLayout,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._api = api
        self._worker = worker
        self._config = config
        self._node = node
        self._clock_ns = clock_ns
        self._memory = NonBestEffortMemory(find_memory(layout.unified))
        self._others = NonBestEffortUse()
        self._rooms = {"cpu": Reclaimable(config.cpu), "memory": Reclaimable(config.memory)}
        self._granted = {"cpu": 0, "memory": 0}
        self._due_ns = 0
        self._resources = NodeResources(api, node)
        self._pace = PublishPolicy(config)
        self._told_foreign: frozenset[str] = frozenset()
        # Whether the node may have something of ours: perhaps an earlier run's.
        self.present = True
        self._offer = _Offer(clock_ns(), None)
        self._known = False
        worker.submit_periodic(min(config.interval_ns, _LOOK_NS) / NS_PER_SEC, self._publish, _JOB)

    def update(
        self,
        snapshot: Snapshot,
        plan: Plan,
        workloads: tuple[Workload, ...],
        pods: Iterable[Pod],
        *,
        enforcing: bool,
    ) -> None:
        """Take what was measured and planned in this tick, and the pods of this node."""
        now_ns = snapshot.time_ns
        if not self._config.enabled:
            self._known = True
            return
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _EVERY_NS
        names = self._config.names
        asked = [pod.requests for pod in pods if pod.requests and not pod.finished]
        granted = {
            "cpu": sum(each.get(names.cpu, 0) for each in asked),
            "memory": sum(each.get(names.memory, 0) for each in asked),
        }
        cpus = self._others.update(snapshot, workloads, _STALE_NS)
        memory = self._memory.poll(each for each in workloads if each.qos is QosClass.BE)
        squeezed_to = plan.quota_granted_cpus
        self._rooms["cpu"].update(
            now_ns,
            1000.0 * len(online_cpus()),
            None if cpus is None else 1000.0 * cpus,
            granted["cpu"],
            None if squeezed_to is None else 1000.0 * squeezed_to,
        )
        self._rooms["memory"].update(now_ns, float(memory_bytes()), memory, granted["memory"])
        self._granted = granted
        amounts = {name: int(self._rooms[kind].amount) for kind, name in names._asdict().items()}
        self._offer = _Offer(self._clock_ns(), amounts if enforcing else None)
        self._known = True

    @property
    def state(self) -> tuple[ReclaimState, ...]:
        """What there is to tell of each resource; nothing where nothing is to be offered."""
        if not self._config.enabled:
            return ()
        foreign = self._resources.foreign
        return tuple(
            ReclaimState(
                resource=name,
                amount=int(self._rooms[kind].amount),
                granted=self._granted[kind],
                stale=self._rooms[kind].stale,
                foreign=name in foreign,
            )
            for kind, name in self._config.names._asdict().items()
        )

    def withdraw(self) -> None:
        """Take everything off the node, in the worker's thread, and offer nothing again."""
        self._offer = _Offer(self._clock_ns(), None)
        self._known = True
        self._worker.submit(self._clear, _JOB, first=True)

    def _publish(self) -> None:
        # In the worker's thread.
        offer, now_ns = self._offer, self._clock_ns()
        stale = now_ns - offer.time_ns > _STALE_NS
        if not self._known and not stale:
            return  # the first tick decides; an earlier run's offer has a time stamp
        amounts = offer.amounts
        if amounts is None:
            self._clear()
            return
        if stale:  # the control thread hangs
            amounts = dict.fromkeys(amounts, 0)
        if not self._pace.due(amounts, now_ns):
            return
        self.present = True  # whatever becomes of the request
        self._resources.publish(amounts, _VALID_HEARTBEATS * self._config.heartbeat_ns / NS_PER_SEC)
        self._pace.mark_published(amounts, now_ns)
        foreign = self._resources.foreign
        for name in sorted(foreign - self._told_foreign):
            _log.warning("node %s: somebody else publishes %s: left alone", self._node, name)
        self._told_foreign = foreign

    def _clear(self) -> None:
        if self.present:
            self._pace.reset()
            if remove_resources(self._api, self._node):
                _log.info("node %s: nothing is offered to best-effort pods now", self._node)
            self.present = False
