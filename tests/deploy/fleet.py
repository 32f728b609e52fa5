# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Made-up series of many nodes, and what the fleet's dashboard must say about them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
import subprocess
from typing import NamedTuple

from controller.host.sources import Source
from controller.rollout.state import Phase

__all__ = ("Fleet",)

_SERVICES = 20
# A service is on each fourth node, so a node has five.
_SPREAD = 4
_INDICATORS = ("runq_p99", "wait_ratio")
_DOWN = 7
# Nodes, the first ones, on which something is so.
_SAFE, _REFUSED, _PAUSED, _DEGRADED, _EVICTING, _SUFFERING = 3, 4, 5, 20, 50, 100
_EVICTION_EVERY_S = 600
_VERDICTS = {"better": 3, "worse": 1}
# A sample lasts five minutes; counters have one a minute. Rules look back an hour.
_GAUGE_S, _COUNTER_S = 240, 60
_BEFORE_S, _LONG_BEFORE_S, _AFTER_S = 900, 3900, 3600

# The values of a query, by the values of its labels.
Values = Mapping[frozenset[str], float]


class _Series(NamedTuple):
    """A series; a counter grows by ``value`` per second."""

    name: str
    labels: Mapping[str, str]
    value: float
    is_counter: bool = False


class Fleet:
    """*nodes* nodes with an agent, and seven whose agent is down."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def write(self, home: Path, now_s: int) -> int:
        """Write the series into the data of a Prometheus below *home*; return their number.

        They are in force around *now_s* and for an hour from then.
        """
        text = home / "series.txt"
        by_name: dict[str, list[_Series]] = {}
        for each in self._series():
            by_name.setdefault(each.name, []).append(each)
        with text.open("w") as file:
            for name, series in by_name.items():
                kind = "counter" if series[0].is_counter else "gauge"
                file.write(f"# TYPE {name.removesuffix('_total')} {kind}\n")
                file.writelines(line for each in series for line in _samples(each, now_s))
            file.write("# EOF\n")
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
        command += [str(text), str(home / "tsdb")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        text.unlink()
        return sum(map(len, by_name.values()))

    def _series(self) -> Iterator[_Series]:
        for number in range(_DOWN):
            yield _Series("up", _target(f"down{number}"), 0)
        controller = {"job": "profile-rollout", "cluster": "c1", "instance": "p1"}
        for phase in Phase:
            of_phase = {**controller, "phase": phase}
            yield _Series("sweetpoint_rollout_phase", of_phase, phase is Phase.CANARY)
        for verdict, count in _VERDICTS.items():
            yield _Series("sweetpoint_rollout_nodes", {**controller, "verdict": verdict}, count)
        for number in range(self.nodes):
            target = _target(f"n{number}")
            yield _Series("up", target, 1)
            for name, value, labels in self._gauges(number):
                yield _Series(f"sweetpoint_{name}", {**target, **labels}, value)
            for name, value, labels in self._counters(number):
                yield _Series(f"sweetpoint_{name}_total", {**target, **labels}, value, True)

    def _gauges(self, node: int) -> Iterator[tuple[str, float, Mapping[str, str]]]:
        yield "mode", 1, {"mode": "enforce" if node % 10 else "observe"}
        for source in Source:
            is_degraded = source is Source.PODS and node < _DEGRADED
            yield "source_degraded", is_degraded, {"source": source}
        yield "safe_state", node < _SAFE, {}
        yield "config_problem", node < _REFUSED, {}
        if node < _PAUSED:
            for source_of_pause in ("file", "node") if node == 0 else ("node",):
                labels = {"scope": "everything", "name": "", "source": source_of_pause}
                yield "paused", 1, labels
            yield "paused", 1, {"scope": "service", "name": "web", "source": "file"}
        squeezes = "squeeze" if node < _SUFFERING else "free"
        yield "channel_state", 1, {"channel": "cpu", "state": squeezes}
        yield "channel_demand_ratio", node / self.nodes, {"channel": "cpu"}
        yield "limited_workloads", 2, {}
        yield "best_effort_granted_cpus", 1.5, {}
        yield "best_effort_ceiling_cpus", 4, {}
        yield "reclaimable_amount", 1000, {"resource": "sweetpoint.dev/cpu"}
        for service in self._services(node):
            for place, indicator in enumerate(_INDICATORS):
                loop = {"service": f"s{service}", "indicator": indicator, "channel": "cpu"}
                yield "indicator_status", 1, {**loop, "status": "fresh"}
                yield "loop_deviation", self._deviation(service, node) - place, loop

    def _counters(self, node: int) -> Iterator[tuple[str, float, Mapping[str, str]]]:
        if node < _EVICTING:
            yield "evictions", 1 / _EVICTION_EVERY_S, {"reason": "cpu", "result": "evicted"}
        if node < _SUFFERING:
            for service in self._services(node):
                for channel, state, share in (
                    ("cpu", "squeeze", service / 200),
                    ("cpu", "not-be", service / 200),
                    ("memory", "squeeze", service / 200),
                ):
                    labels = {"service": f"s{service}", "channel": channel, "state": state}
                    yield "service_above_sweet_point_seconds", share, labels

    def _services(self, node: int) -> range:
        return range(node % _SPREAD, _SERVICES, _SPREAD)

    def _deviation(self, service: int, node: int) -> float:
        return service / 10 - node / 500

    @property
    def recorded(self) -> int:
        """The number of recorded series, which does not depend on the number of nodes."""
        # Modes and states of a channel: two each. Sources. Nine single ones. Three of a service.
        # Phases of a rollout, and verdicts.
        return 2 + 2 + len(Source) + 9 + 3 * _SERVICES + len(Phase) + len(_VERDICTS)

    def expected(self) -> Mapping[str, Values]:
        """Return the values of each query of the dashboard, by its place."""
        services = range(_SERVICES)
        share = {_key(f"s{s}"): s / 1000 * 1000 / self.nodes for s in services}
        worst = {_key(f"s{s}"): self._deviation(s, s % _SPREAD) for s in services}
        suffer = {
            _key(f"n{node}"): max(self._deviation(s, node) for s in self._services(node))
            for node in range(self.nodes)
        }
        demand = {_key(f"n{node}"): node / self.nodes for node in range(self.nodes)}
        return {
            "Agents A": {_key(): self.nodes},
            "Agents down A": {_key(): _DOWN},
            "Nodes in the safe state A": {_key(): _SAFE},
            "Nodes paused A": {_key(): _PAUSED},
            "Nodes by mode A": {
                _key("enforce"): 0.9 * self.nodes,
                _key("observe"): 0.1 * self.nodes,
            },
            "Nodes that are not well A": {
                _key(each): _DEGRADED if each is Source.PODS else 0 for each in Source
            },
            "Nodes that are not well B": {_key(): _REFUSED},
            "Rollout of a profile A": {_key("c1", Phase.CANARY): 1},
            "Canary nodes by verdict A": _of_cluster(
                {_key(verdict): count for verdict, count in _VERDICTS.items()}
            ),
            "Services now, the worst first A": _of_cluster(share),
            "Services now, the worst first B": _of_cluster(worst),
            "Services now, the worst first C": _of_cluster(
                {_key(f"s{s}"): self.nodes / _SPREAD for s in services}
            ),
            "Time above the sweet point, the ten worst services A": _of_cluster(_top(share)),
            "Deviation on the worst node, the ten worst services A": _of_cluster(_top(worst)),
            "CPUs of best-effort work A": _of_cluster({_key(): 1.5 * self.nodes}),
            "CPUs of best-effort work B": _of_cluster({_key(): 4 * self.nodes}),
            "Best-effort workloads that are limited A": _of_cluster({_key(): 2 * self.nodes}),
            "Channels that are not free A": {_key("cpu", "squeeze"): _SUFFERING},
            "Evictions in an hour A": {
                _key("cpu", "evicted"): _EVICTING * 3600 / _EVICTION_EVERY_S
            },
            "Offered to best-effort pods A": {_key("sweetpoint.dev/cpu"): 1000 * self.nodes},
            "The ten nodes that suffer most A": _of_cluster(_top(suffer)),
            "The ten nodes that squeeze most A": _of_cluster(_top(demand)),
        }


def _target(node: str) -> Mapping[str, str]:
    return {"job": "sweetpoint", "cluster": "c1", "instance": node}


def _samples(series: _Series, now_s: int) -> Iterator[str]:
    labels = ",".join(f'{key}="{value}"' for key, value in series.labels.items())
    head = f"{series.name}{{{labels}}}"
    first_s = now_s - (_LONG_BEFORE_S if "evictions" in series.name else _BEFORE_S)
    step_s = _COUNTER_S if series.is_counter else _GAUGE_S
    for at_s in range(first_s, now_s + _AFTER_S, step_s):
        value = series.value * (at_s - first_s) if series.is_counter else float(series.value)
        yield f"{head} {value} {at_s}\n"


def _key(*values: str) -> frozenset[str]:
    return frozenset(values)


def _of_cluster(values: Values) -> Values:
    return {key | {"c1"}: value for key, value in values.items()}


def _top(values: Values) -> Values:
    return dict(sorted(values.items(), key=lambda item: -item[1])[:10])
