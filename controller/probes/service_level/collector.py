# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""All sources of service levels, in one thread beside the control thread."""

import asyncio
from collections.abc import Mapping
import logging
from random import Random
import threading

from controller.config.sections.service_level import Push, ServiceLevelConfig, ServiceSource
from controller.core.model import ServiceReading
from controller.probes.service_level.fetch import FetchLoop
from controller.probes.service_level.ledger import Ledger, ServiceState
from controller.probes.service_level.poll import poll
from controller.probes.service_level.push import Inbox

__all__ = ("ServiceLevels",)

_log = logging.getLogger(__name__)

_END_S = 2.0


class ServiceLevels:
    """Asks and listens as configured, until closed; reading costs no system call."""

    def __init__(self, config: ServiceLevelConfig | None) -> None:
        self._config: ServiceLevelConfig | None = None
        self._runner: _Runner | None = None
        self.reconfigure(config)

    def reconfigure(self, config: ServiceLevelConfig | None) -> None:
        """Go on with *config*; sources that it does not change keep what is known of them."""
        if config == self._config:
            return
        known = [] if self._runner is None else self._runner.ledgers
        self.close()
        self._config = config
        if config is not None:
            self._runner = _Runner(config, {ledger.source: ledger for ledger in known})

    @property
    def problem(self) -> str:
        """Why nobody can push, if that is so."""
        return "" if self._runner is None else self._runner.problem

    @property
    def refused_pushes(self) -> Mapping[str, int]:
        """Pushes that no service got, by reason."""
        inbox = None if self._runner is None else self._runner.inbox
        return {} if inbox is None else inbox.errors.copy()

    def poll(self, now_ns: int) -> tuple[ServiceReading, ...]:
        """Return one reading per service that has a source."""
        return (
            () if self._runner is None else tuple(x.reading(now_ns) for x in self._runner.ledgers)
        )

    def states(self, now_ns: int) -> tuple[ServiceState, ...]:
        """Return everything there is to tell of each source."""
        return () if self._runner is None else tuple(x.state(now_ns) for x in self._runner.ledgers)

    def close(self) -> None:
        """Stop asking and listening; questions that are under way are dropped."""
        if self._runner is not None:
            self._runner.close()
        self._runner = self._config = None


class _Runner:
    def __init__(self, config: ServiceLevelConfig, known: Mapping[ServiceSource, Ledger]) -> None:
        self.ledgers = [known.get(source) or Ledger(source) for source in config.sources]
        self.problem = ""
        self.inbox = self._listen(config)
        self._loop = FetchLoop()
        self._thread = threading.Thread(target=self._run, name="service-level", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_S)
        if self.inbox is not None:
            self.inbox.close()

    def _listen(self, config: ServiceLevelConfig) -> Inbox | None:
        pushers = {x.source.service: x for x in self.ledgers if isinstance(x.source.source, Push)}
        if not pushers:
            return None
        try:
            return Inbox(config, pushers)
        except OSError as error:
            self.problem = str(error)
            _log.error("%s", error)
            return None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        random = Random()  # noqa: S311 - jitter is no secret
        tasks = [
            self._loop.create_task(poll(ledger, random))
            for ledger in self.ledgers
            if not isinstance(ledger.source.source, Push)
        ]
        if self.inbox is not None:
            self.inbox.start(self._loop)
        self._loop.run_forever()
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # connections that were cut off, close
        self._loop.close()
