# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a block measures, from the pages (/statusz) that an agent answers meanwhile.

Times and CPU seconds are differences of counters, so they do not depend on how often the agent is
asked; indicators are means of the values in the pages.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from controller.core.decision import IndicatorStatus
from controller.core.model import QosClass
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.host.facts import online_cpus
from controller.page.view import mapping, number, records, text
from controller.probes.steal import StealMeter
from controller.trial.blocks import Arm, Block, Work

__all__ = ("CounterResetError", "Meter", "Page")

Page = Mapping[str, Any]
# Paths of cgroups are the longest names.
_MOST_NAME = 4096
_ONCPU = "oncpu_ns"
# The counters of a workload in a page, by what they measure, and how many of them make one unit.
_COUNTED = {
    Work.INSTRUCTIONS: ("instructions", 1e9),
    Work.NETWORK: ("network_bytes", 1e6),
    Work.DISKS: ("io_bytes", 1e6),
}
_HOUR_S = 3600


class CounterResetError(Exception):
    """The agent was started again since the page before."""


class Meter:
    """Adds up pages of one block from *page* on. *began_s*: since 1970."""

    def __init__(self, arm: Arm, page: Page, began_s: float) -> None:
        self._arm, self._began_s = arm, began_s
        self._first = self._last = page
        self._stolen_ns = _stolen_ns()
        # What best-effort work did, by counter; a counter that is not measured is missing.
        self._done: dict[str, float] = defaultdict(float)
        self._served_ns = 0.0
        self._values: dict[str, list[float]] = defaultdict(list)

    def take(self, page: Page) -> None:
        """Take the next page.

        :raises CounterResetError: it is that of another run of the agent.
        """
        if page.get("time_ns") == self._last.get("time_ns"):
            return  # no tick since
        if _ran_ns(page) < _ran_ns(self._last):
            raise CounterResetError
        for name in (_ONCPU, *(counter for counter, _ in _COUNTED.values())):
            done = _done_since(name, QosClass.BE, page, self._last)
            if done is not None:
                self._done[name] += done
        self._served_ns += _done_since(_ONCPU, QosClass.LS, page, self._last) or 0.0
        for loop in records(mapping(page.get("plan")).get("loops")):
            value = number(loop.get("value"))
            if value is not None and loop.get("status") == IndicatorStatus.FRESH:
                name = f"{_name(loop.get('service'))} {_name(loop.get('indicator'))}"
                if loop.get("is_time") is True:
                    name, value = f"{name} (ms)", value / NS_PER_MS
                self._values[name].append(value)
        self._last = page

    @property
    def measured_s(self) -> float:
        """The time of the agent's plans since the first page."""
        return (_ran_ns(self._last) - _ran_ns(self._first)) / NS_PER_SEC

    def suffered_s(self) -> dict[str, float]:
        """Return how long each service was above a sweet point, on its worst channel."""
        before, now = _suffered_ns(self._first), _suffered_ns(self._last)
        found = {service: 0.0 for service in _services(self._last)}
        for (service, channel), time_ns in now.items():
            passed_s = (time_ns - before.get((service, channel), 0.0)) / NS_PER_SEC
            found[service] = max(found.get(service, 0.0), passed_s)
        return found

    def block(self) -> Block:
        """Return what was measured so far."""
        stolen_s = (_stolen_ns() - self._stolen_ns) / NS_PER_SEC
        measured_s = max(self.measured_s, 1e-9)
        agent_s = _agent_s(self._last) - _agent_s(self._first)
        return Block(
            arm=self._arm,
            began_s=self._began_s,
            measured_s=self.measured_s,
            suffered_ratio={
                service: min(1.0, time_s / measured_s)
                for service, time_s in self.suffered_s().items()
            },
            values={name: sum(each) / len(each) for name, each in self._values.items()},
            best_effort_cpus=self._done[_ONCPU] / NS_PER_SEC / measured_s,
            agent_cpus=agent_s / measured_s,
            stolen_ratio=stolen_s / measured_s / len(online_cpus()),
            work=dict(self._work(measured_s)),
            service_cpus=self._served_ns / NS_PER_SEC / measured_s,
        )

    def _work(self, measured_s: float) -> Iterator[tuple[Work, float]]:
        for work, (name, unit) in _COUNTED.items():
            if name in self._done:
                yield work, self._done[name] / unit / measured_s
        before, now = _completed(self._first), _completed(self._last)
        if before is not None and now is not None:
            yield Work.PODS, (now - before) / measured_s * _HOUR_S


def _stolen_ns() -> int:
    return StealMeter().poll(now_ns=0) or 0


def _ran_ns(page: Page) -> float:
    return number(page.get("ran_ns")) or 0.0


def _agent_s(page: Page) -> float:
    return number(mapping(page.get("agent")).get("cpu_s")) or 0.0


def _services(page: Page) -> set[str]:
    loops = records(mapping(page.get("plan")).get("loops"))
    return {_name(loop.get("service")) for loop in loops}


def _suffered_ns(page: Page) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for each in records(page.get("suffered")):
        key = _name(each.get("service")), _name(each.get("channel"))
        found[key] += number(each.get("time_ns")) or 0.0
    return found


def _name(value: object) -> str:
    """Return a name whole: two of them that begin alike are not one."""
    return text(value, most=_MOST_NAME)


def _done_since(name: str, qos: QosClass, page: Page, last: Page) -> float | None:
    """Return how far the counter *name* of the workloads of *qos* went; a new one began at 0.

    ``None``: it is not measured.
    """
    before, now = _counts(name, qos, last), _counts(name, qos, page)
    if not now:
        return None
    return sum(max(0.0, value - before.get(path, 0.0)) for path, value in now.items())


def _counts(name: str, qos: QosClass, page: Page) -> dict[str, float]:
    return {
        _name(each.get("path")): value
        for each in records(page.get("workloads"))
        if each.get("qos") == qos and (value := number(each.get(name))) is not None
    }


def _completed(page: Page) -> float | None:
    """Return how many best-effort pods completed; ``None``: this is no node of a cluster."""
    return number(mapping(page.get("cluster")).get("completed"))
