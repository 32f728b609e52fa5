# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Polls all configured service-level sources and receives pushes, in one background thread."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
import errno
import logging
from random import Random
import threading

from controller.config.sections.service_sources import Push, ServiceLevelConfig, ServiceSource
from controller.probes.service_level.fetch import FetchLoop
from controller.probes.service_level.ledger import Ledger
from controller.probes.service_level.poll import Pace, poll
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
    :raises OSError: the host is short of descriptors or threads; nothing is left open.
    """

    def __init__(
        self,
        config: ServiceLevelConfig,
        known: Mapping[ServiceSource, Ledger],
        on_figure: Callable[[], None],
    ) -> None:
        self._on_figure = on_figure
        self.ledgers = [known.get(each) or Ledger(each, on_figure) for each in config.sources]
        # Those of pods that an earlier runner asked are taken up again.
        self._known = {**known, **{each.source: each for each in self.ledgers}}
        self._pace = Pace()
        self._tasks: dict[ServiceSource, asyncio.Task[None]] = {}
        self._random = Random()  # noqa: S311 - jitter is no secret
        self._config = config
        self._pushers = {
            each.source.service: each
            for each in self.ledgers
            if isinstance(each.source.source, Push)
        }
        self._problem = ""
        self._loop = FetchLoop()
        self.pushes = self._listen()
        self._thread = threading.Thread(target=self._run, name="service-level", daemon=True)
        try:
            self._thread.start()
        except (OSError, RuntimeError):
            self._loop.close()
            if self.pushes is not None:
                self.pushes.close()
            raise OSError(errno.EAGAIN, "no thread can be started") from None

    def set_pods(self, pods: Iterable[ServiceSource]) -> None:
        """Poll *pods* from now on, besides the sources of the configuration."""
        sources = dict.fromkeys((*self._config.sources, *pods))
        known = {each: self._known.get(each) or Ledger(each, self._on_figure) for each in sources}
        self._known = known
        self.ledgers = list(known.values())
        self._loop.call_soon_threadsafe(self._follow, self.ledgers)

    def _follow(self, ledgers: Iterable[Ledger]) -> None:
        """Poll exactly *ledgers*; in the thread of the loop."""
        polled = [each for each in ledgers if not isinstance(each.source.source, Push)]
        wanted = {each.source for each in polled}
        for source in [each for each in self._tasks if each not in wanted]:
            self._tasks.pop(source).cancel()
        self._pace.pods = sum(each.source.is_pod for each in polled)
        for each in polled:
            if each.source not in self._tasks:
                pace = self._pace if each.source.is_pod else None
                self._tasks[each.source] = self._loop.create_task(poll(each, self._random, pace))

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
        self._follow(self.ledgers)
        receiving = [self._loop.create_task(self._receive())] if self._pushers else []
        self._loop.run_forever()
        tasks = [*self._tasks.values(), *receiving]
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # lets aborted connections close
        self._loop.close()
