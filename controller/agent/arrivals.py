# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Containers that are about to run: the runtime's thread wakes the control thread for a tick."""

from collections.abc import Mapping
from pathlib import Path
import signal
import threading

from controller.config.sections.agent import NriConfig, NriMode
from controller.core.units import NS_PER_SEC
from controller.nri.doorbell import Doorbell, DoorbellState
from controller.workloads.pods.pod import RuntimePod

__all__ = ("ARRIVAL", "Arrivals")

# The signal to the control thread, which blocks it and waits for it between two ticks.
ARRIVAL = signal.SIGRTMIN


class Arrivals:
    """The doorbell of an agent that enforces; of another one no container waits for a tick.

    For the control thread. ``state`` is ``None`` without a doorbell.
    """

    def __init__(self, config: NriConfig) -> None:
        self._config = config
        self._doorbell: Doorbell | None = None

    def follow(self, enforcing: bool) -> None:
        """Have a doorbell if *enforcing*, and if it is wanted."""
        if enforcing and self._doorbell is None and self._is_wanted:
            thread, within_s = threading.get_ident(), self._config.answer_within_ns / NS_PER_SEC
            self._doorbell = Doorbell(
                self._config.socket, within_s, lambda: signal.pthread_kill(thread, ARRIVAL)
            )
        elif not enforcing and self._doorbell is not None:
            self._doorbell.close()
            self._doorbell = None

    @property
    def _is_wanted(self) -> bool:
        enabled = self._config.enabled
        return enabled is NriMode.ON or (
            enabled is NriMode.AUTO and Path(self._config.socket).exists()
        )

    @property
    def state(self) -> DoorbellState | None:
        """What the runtime told so far."""
        return None if self._doorbell is None else self._doorbell.state

    @property
    def pods(self) -> Mapping[str, RuntimePod]:
        """The pods that the runtime reported, by UID; another object after each change."""
        return {} if self._doorbell is None else self._doorbell.pods

    @property
    def waits(self) -> bool:
        """Whether a container came since the last tick began."""
        return self._doorbell is not None and self._doorbell.waits

    @property
    def arrived(self) -> frozenset[str]:
        """The ids of the pods with containers that came before the last tick began."""
        return frozenset() if self._doorbell is None else self._doorbell.arrived

    def begin_tick(self) -> bool:
        """Note that a tick begins; return ``waits``."""
        return self._doorbell is not None and self._doorbell.begin()

    def end_writes(self) -> None:
        """Let the containers run whose tick has made its writes, or was abandoned."""
        if self._doorbell is not None:
            self._doorbell.end()
