# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shaped links: their qdisc trees, the filters at the veths of pods, and their traffic.

In observe mode nothing is made: only the facts of the links and their unlimited ceilings are
returned. In enforce mode the trees are made through the executor, verified every 5 s, and repaired
when another program changes them, at most three times in ten minutes.
"""

from collections.abc import Iterable
import logging

from actuators.base import GoneError, RefusedError
from actuators.executor import Executor
from actuators.tc.netlink import Netlink
from actuators.tc.shape import (
    BEST_EFFORT,
    CLASS_OF_TIER,
    FIRST_LIMIT,
    MAJOR,
    Tree,
    decode,
    encode,
    same_layout,
)
from actuators.tc.tree import Programs, ifb_name
from controller.config.sections.network import NetworkConfig
from controller.core.decision import Action, Failure, Outcome
from controller.core.model import (
    Knob,
    KnobReading,
    KnobValue,
    LinkSample,
    QosClass,
    Target,
    Workload,
)
from controller.core.settings import LinkFacts
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.probes.bpf.btf import BtfError
from controller.probes.bpf.loader import LoadError
from controller.probes.qdisc import QdiscReader
from controller.probes.tc_classifier import Classifier
from controller.reconcilers.network.device import Device, DeviceError, open_device
from controller.reconcilers.network.pod_filters import PodFilters, class_of
from controller.reconcilers.network.pod_limits import POD_LIMITS, PodLimits, unkept

__all__ = ("ShapedLinks",)

_log = logging.getLogger(__name__)

_VERIFY_NS = 5 * NS_PER_SEC
# After a failure to read a link's counters. The kernel may take a second to fail, in a tick.
_UNREAD_REST_NS = 30 * NS_PER_SEC
_REPAIRS = 3
_REPAIRS_WITHIN_NS = 600 * NS_PER_SEC


class ShapedLinks:
    """The devices of the section ``network``; for the control thread alone.

    ``problems`` has the reason for every device that is not shaped, by the name of the device. It
    has an entry ``classify`` if the BPF programs cannot be loaded, and ``pod_limits`` if limits of
    pods are not enforced.
    """

    def __init__(self, config: NetworkConfig, layout: CgroupLayout) -> None:
        self.problems: dict[str, str] = {}
        self._devices = self._open(config)
        self._classifier = self._load(config) if any(d.tree for d in self._devices) else None
        self._filters = (
            None
            if self._classifier is None
            else PodFilters(layout, config.limits, self._classifier)
        )
        self._limits = config.limits
        self._shapes = any(device.tree is not None for device in self._devices)
        count = config.pod_limits if self._shapes else 0
        self._pods = PodLimits(FIRST_LIMIT + len(config.limits), count)
        numbers = {tier: [number] for tier, number in CLASS_OF_TIER.items()}
        numbers[QosClass.BE] += range(FIRST_LIMIT, self._pods.classes.stop)
        self._tiers = {t: [MAJOR << 16 | one for one in ones] for t, ones in numbers.items()}
        self._made: dict[Target, int | None] = {}  # with the ifindex of the ifb
        self._shaped: dict[Target, Tree] = {}  # the tree that was written last
        self._unread: dict[Target, int] = {}  # with the time to try again
        self._repaired_ns: dict[Target, list[int]] = {}
        self._due_ns = 0
        self._reader = QdiscReader()

    @property
    def programs(self) -> Programs | None:
        """The loaded BPF programs that the actuators attach; ``None``: no tree can be made."""
        fds = None if self._classifier is None else self._classifier.program_fds
        return None if fds is None else Programs(**fds)

    @property
    def facts(self) -> tuple[LinkFacts, ...]:
        """The capacities of the links, for the planner."""
        return tuple(device.facts for device in self._devices)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The links whose ceiling is a knob, to be read with the other knobs."""
        return tuple(device.target for device in self._devices)

    def unlimited(self) -> tuple[KnobReading, ...]:
        """Return readings of unlimited links, which observe mode plans with."""
        return tuple(
            KnobReading(device.target, Knob.TC_CEILING, device.unlimited)
            for device in self._devices
        )

    def set_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the present workloads, whose packets are classified by the next ``reconcile``."""
        workloads = tuple(workloads)
        # A workload with a class by the configuration stays there, also with a limit of its own:
        # that limit may be higher.
        others = (w for w in workloads if class_of(w, self._limits) == BEST_EFFORT)
        if self._pods.set_workloads(others):
            self._due_ns = 0
        self._log_limits()
        if self._filters is not None:
            self._filters.set_workloads(workloads, self._pods.numbers)

    def reconcile(self, executor: Executor, now_ns: int) -> bool:
        """Make missing trees and filters, in enforce mode.

        :return: whether a tree was made, changed or found damaged.
        """
        changed = False
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _VERIFY_NS
            for device in self._devices:
                if device.tree is not None:
                    tree = self._with_limits(device.tree)
                    try:
                        changed |= self._reconcile_device(executor, device, tree, now_ns)
                    except RefusedError as error:
                        self.problems[device.target.path] = f"{device.target.path}: {error}"
        if self._filters is not None and self._made:
            self._filters.reconcile(executor, now_ns)
        return changed

    def reset(self) -> None:
        """Start over after all trees and filters were removed."""
        self._made.clear()
        self._shaped.clear()
        self._due_ns = 0
        if self._filters is not None:
            self._filters.reset()

    def samples(self, now_ns: int) -> tuple[LinkSample, ...]:
        """Return the counters of every tier of every tree that was made.

        Those of a link that the kernel does not answer for are left out, for half a minute.
        """
        samples: list[LinkSample] = []
        for target, ifb in self._made.items():
            if now_ns < self._unread.get(target, now_ns):
                continue
            try:
                samples += self._samples_of(target, ifb)
            except OSError as error:
                problem = f"{target.path}: its counters cannot be read: {error.strerror or error}"
                if target not in self._unread:
                    _log.error("%s", problem)
                self.problems[target.path] = problem
                self._unread[target] = now_ns + _UNREAD_REST_NS
            else:
                if self._unread.pop(target, None) is not None:
                    self.problems.pop(target.path, None)
        return tuple(samples)

    def _samples_of(self, target: Target, ifb: int | None) -> list[LinkSample]:
        every = [number for numbers in self._tiers.values() for number in numbers]
        devices = [(target.id, False), *([] if ifb is None else [(ifb, True)])]
        counters = self._reader.poll({ifindex: every for ifindex, _ in devices})
        samples = []
        for ifindex, ingress in devices:
            for tier, numbers in self._tiers.items():
                keys = ((ifindex, number) for number in numbers)
                found = [counters[key] for key in keys if key in counters]
                if found:
                    sums = map(sum, zip(*found, strict=True))
                    samples.append(LinkSample(target, ingress, str(tier), *sums))
        return samples

    def close(self) -> None:
        """Close the programs; the trees stay until ``Executor.restore_all``."""
        self._reader.close()
        if self._classifier is not None:
            self._classifier.close()

    def _open(self, config: NetworkConfig) -> tuple[Device, ...]:
        found = []
        with Netlink() as netlink:
            for device in config.devices:
                try:
                    found.append(open_device(netlink, device, config))
                except (DeviceError, GoneError, RefusedError) as error:
                    self.problems[device.name] = str(error)
                    _log.error("not shaped: %s", error)
        return tuple(found)

    def _load(self, config: NetworkConfig) -> Classifier | None:
        try:
            return Classifier(
                major=MAJOR,
                system_class=CLASS_OF_TIER[QosClass.SYSTEM],
                mark_mask=config.mark_mask,
            )
        except (BtfError, LoadError, OSError) as error:
            self.problems["classify"] = str(error)
            _log.error("no link is shaped: %s", error)
            return None

    def _reconcile_device(
        self, executor: Executor, device: Device, tree: Tree, now_ns: int
    ) -> bool:
        """Bring the tree of one link in line; return whether the tree was written."""
        target = device.target
        found = {r.knob: r.value for r in executor.read([target])}.get(Knob.TC_TREE)
        if found is None:
            self._made.pop(target, None)
            self.problems[target.path] = f"{target.path}: the device is gone or cannot be read"
            return False
        if _fits(found, tree):
            if target not in self._made:
                self._adopt(target, tree)
            return False
        # The tree found is the one written last, so only a limit in the wanted tree is new.
        untouched = target in self._shaped and _fits(found, self._shaped[target])
        if target in self._made and not untouched and not self._may_repair(target, now_ns):
            self.problems[target.path] = f"{target.path}: another program keeps changing the tree"
            return False
        action = Action(
            target=target,
            knob=Knob.TC_TREE,
            previous=found,
            value=encode(tree),
            reason="shaping a link",
        )
        (outcome,) = executor.execute([action], now_ns=now_ns)
        self._update_tree(target, tree, outcome)
        return True

    def _update_tree(self, target: Target, tree: Tree, outcome: Outcome) -> None:
        if outcome.applied is not None and _fits(outcome.applied, tree):
            self._adopt(target, tree)
            _log.info("%s: shaped: %s", target.path, outcome.applied)
        elif outcome.failure is Failure.REFUSED:
            self.problems[target.path] = outcome.message

    def _with_limits(self, tree: Tree) -> Tree:
        return Tree(
            *(
                shape
                and shape._replace(
                    limits=shape.limits + self._pods.ceilings(shape.rate, ingress=ingress)
                )
                for shape, ingress in zip(tree, (False, True), strict=True)
            )
        )

    def _log_limits(self) -> None:
        problem = unkept(self._pods.without, len(self._pods.classes), shaped=self._shapes)
        if not problem:
            self.problems.pop(POD_LIMITS, None)
        elif problem != self.problems.get(POD_LIMITS):
            self.problems[POD_LIMITS] = problem
            _log.warning("%s", problem)

    def _adopt(self, target: Target, tree: Tree) -> None:
        self._shaped[target] = tree
        with Netlink() as netlink:
            ifb = netlink.find(ifb_name(target.id))
        self._made[target] = None if ifb is None else ifb.ifindex
        self.problems.pop(target.path, None)

    def _may_repair(self, target: Target, now_ns: int) -> bool:
        recent = [
            at for at in self._repaired_ns.get(target, []) if at > now_ns - _REPAIRS_WITHIN_NS
        ]
        self._repaired_ns[target] = recent
        if len(recent) >= _REPAIRS:
            return False
        recent.append(now_ns)
        _log.warning("%s: another program changed the tree: repairing it", target.path)
        return True


def _fits(found: KnobValue, tree: Tree) -> bool:
    """Return whether *found* is *tree*, whatever the ceiling of best-effort work is."""
    try:
        return same_layout(decode(found), tree)
    except ValueError:
        return False
