# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Polls all configured service-level sources and receives pushes, in one background thread."""

import asyncio
from collections.abc import Callable, Mapping
import logging
from random import Random
import threading

from controller.config.sections.service_level import Push, ServiceLevelConfig, ServiceSource
from controller.probes.service_level.fetch import FetchLoop
from controller.probes.service_level.ledger import Ledger
from controller.probes.service_level.poll import poll
from controller.probes.service_level.push import PushSocket

__all__ = ("Runner",)

_log = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 2.0
_LISTEN_AGAIN_S = 5.0


class Runner:
    """The thread with its event loop, for one configuration.

    ``pushes`` is the socket for pushes; ``None``: no service pushes, or it cannot be created now,
    for instance because ``sweetpoint learn`` has it. That is tried again every five seconds.

    :param known: ledgers to go on with, by source.
    :param on_figure: called in the thread after each figure.
    """

    def __init__(
        self,
        config: ServiceLevelConfig,
        known: Mapping[ServiceSource, Ledger],
        on_figure: Callable[[], None],
    ) -> None:
        self.ledgers = [known.get(each) or Ledger(each, on_figure) for each in config.sources]
        self._config = config
        self._pushers = {
            each.source.service: each
            for each in self.ledgers
            if isinstance(each.source.source, Push)
        }
        self._problem = ""
        self.pushes = self._listen()
        self._loop = FetchLoop()
        self._thread = threading.Thread(target=self._run, name="service-level", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_TIMEOUT_S)
        if self.pushes is not None:
            self.pushes.close()

    def _listen(self) -> PushSocket | None:
        if not self._pushers:
            return None
        try:
            return PushSocket(self._config, self._pushers)
        except OSError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                _log.error("%s; tried again every %.0f s", error, _LISTEN_AGAIN_S)
            return None

    async def _receive(self) -> None:
        while self.pushes is None:
            await asyncio.sleep(_LISTEN_AGAIN_S)
            self.pushes = self._listen()
        self.pushes.start(self._loop)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        random = Random()  # noqa: S311 - jitter is no secret
        tasks = [
            self._loop.create_task(poll(ledger, random))
            for ledger in self.ledgers
            if not isinstance(ledger.source.source, Push)
        ]
        if self._pushers:
            tasks.append(self._loop.create_task(self._receive()))
        self._loop.run_forever()
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # lets aborted connections close
        self._loop.close()
