# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The last figures of all configured service-level sources, for the control thread."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from controller.config.sections.service_sources import PodAddress, ServiceLevelConfig
from controller.core.model import ServiceReading
from controller.probes.service_level.ledger import Ledger, ServiceState

if TYPE_CHECKING:
    from controller.probes.service_level.runner import Runner

__all__ = ("ServiceLevels",)

# kubelet runs 110 pods by default, and 250 are usual.
_MOST_PODS = 500


class Pods(Protocol):
    """The pods of services; ``revision`` changes when ``addresses`` may be others."""

    @property
    def revision(self) -> int: ...

    def addresses(self) -> tuple[PodAddress, ...]: ...


class ServiceLevels:
    """The sources of *config* and their last figures, until closed; reading costs no system call.

    A push socket that cannot be created is logged as an error; the sources that are polled still
    work then. ``on_figure`` is called after each figure, in the thread of the sources.
    """

    def __init__(self, config: ServiceLevelConfig | None) -> None:
        self._config: ServiceLevelConfig | None = None
        self._runner: Runner | None = None
        self._revision: int | None = None
        self.on_figure: Callable[[], None] = lambda: None
        self.reconfigure(config)

    def reconfigure(self, config: ServiceLevelConfig | None) -> None:
        """Switch to *config*; sources that are equal in both keep their figures and errors.

        :raises OSError: the host is short of descriptors or threads. The sources of before go on if
            it allows that, otherwise there are none until the next call.
        """
        if config == self._config:
            return
        before = self._config
        known = [] if self._runner is None else self._runner.ledgers
        self.close()
        try:
            self._start(config, known)
        except OSError:
            self._start(before, known)
            raise

    def _start(self, config: ServiceLevelConfig | None, known: Iterable[Ledger]) -> None:
        self._revision = None
        if config is not None:
            # Here, because asyncio and TLS take a tenth of the start of an agent without sources.
            from controller.probes.service_level.runner import Runner

            kept = {ledger.source: ledger for ledger in known}
            self._runner = Runner(config, kept, lambda: self.on_figure())
        self._config = config

    def follow_pods(self, pods: Pods) -> None:
        """Ask each of *pods* whose profile says where it has its figure, and no other ones."""
        config = self._config
        if config is None or not config.pods or self._runner is None:
            return
        if pods.revision == self._revision:
            return
        self._revision = pods.revision
        asked = (each for each in pods.addresses() if each.profile in config.pods)
        sources = [config.pods[each.profile].source_of(each) for each in islice(asked, _MOST_PODS)]
        self._runner.set_pods(sources)

    @property
    def refused_pushes(self) -> Mapping[str, int]:
        """Number of pushes that could not be assigned to a service, by reason."""
        pushes = None if self._runner is None else self._runner.pushes
        return {} if pushes is None else pushes.errors.copy()

    def poll(self, now_ns: int) -> tuple[ServiceReading, ...]:
        """Return one reading per service that has a source: the worst of its pods."""
        worst: dict[str, ServiceReading] = {}
        for each in () if self._runner is None else self._runner.ledgers:
            reading = each.reading(now_ns)
            known = worst.get(reading.service)
            worst[reading.service] = reading if known is None else max(known, reading, key=_rank)
        return tuple(worst.values())

    @property
    def answers(self) -> int:
        """A number that changes when a source gives a figure."""
        return 0 if self._runner is None else sum(each.answers for each in self._runner.ledgers)

    def states(self, now_ns: int) -> tuple[ServiceState, ...]:
        """Return the full state of each source, for reports; of the pods of a service together."""
        found: dict[tuple[str, str], ServiceState] = {}
        for each in () if self._runner is None else self._runner.ledgers:
            state = each.state(now_ns)
            key = state.service, state.kind
            found[key] = state if key not in found else found[key].joined(state)
        return tuple(found.values())

    def close(self) -> None:
        """Stop polling and listening; requests in progress are dropped."""
        if self._runner is not None:
            self._runner.close()
        self._runner = self._config = None


def _rank(reading: ServiceReading) -> tuple[bool, bool, float]:
    """Order readings: a figure, a larger one first, then an idle pod, then one without answer."""
    value = reading.value
    return value is not None, reading.age_ns is not None, 0.0 if value is None else value
