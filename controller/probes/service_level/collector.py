# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The last figures of all configured service-level sources, for the control thread."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from controller.config.sections.service_level import ServiceLevelConfig
from controller.core.model import ServiceReading
from controller.probes.service_level.ledger import ServiceState

if TYPE_CHECKING:
    from controller.probes.service_level.runner import Runner

__all__ = ("ServiceLevels",)


class ServiceLevels:
    """The sources of *config* and their last figures, until closed; reading costs no system call.

    A push socket that cannot be created is logged as an error; the sources that are polled still
    work then. ``on_figure`` is called after each figure, in the thread of the sources.
    """

    def __init__(self, config: ServiceLevelConfig | None) -> None:
        self._config: ServiceLevelConfig | None = None
        self._runner: Runner | None = None
        self.on_figure: Callable[[], None] = lambda: None
        self.reconfigure(config)

    def reconfigure(self, config: ServiceLevelConfig | None) -> None:
        """Switch to *config*; sources that are equal in both keep their figures and errors."""
        if config == self._config:
            return
        known = [] if self._runner is None else self._runner.ledgers
        self.close()
        self._config = config
        if config is not None:
            # Here, because asyncio and TLS take a tenth of the start of an agent without sources.
            from controller.probes.service_level.runner import Runner

            kept = {ledger.source: ledger for ledger in known}
            self._runner = Runner(config, kept, lambda: self.on_figure())

    @property
    def refused_pushes(self) -> Mapping[str, int]:
        """Number of pushes that could not be assigned to a service, by reason."""
        pushes = None if self._runner is None else self._runner.pushes
        return {} if pushes is None else pushes.errors.copy()

    def poll(self, now_ns: int) -> tuple[ServiceReading, ...]:
        """Return one reading per service that has a source."""
        return (
            () if self._runner is None else tuple(x.reading(now_ns) for x in self._runner.ledgers)
        )

    @property
    def answers(self) -> int:
        """A number that changes when a source gives a figure."""
        return 0 if self._runner is None else sum(each.answers for each in self._runner.ledgers)

    def states(self, now_ns: int) -> tuple[ServiceState, ...]:
        """Return the full state of each source, for reports."""
        return () if self._runner is None else tuple(x.state(now_ns) for x in self._runner.ledgers)

    def close(self) -> None:
        """Stop polling and listening; requests in progress are dropped."""
        if self._runner is not None:
            self._runner.close()
        self._runner = self._config = None
