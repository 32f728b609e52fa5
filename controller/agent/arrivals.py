# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Containers that are about to run: the runtime's thread wakes the control thread for a tick."""

from pathlib import Path
import signal
import threading

from controller.config.sections.agent import NriConfig, NriMode
from controller.core.units import NS_PER_SEC
from controller.nri.doorbell import Doorbell

__all__ = ("ARRIVAL", "listen")

# The signal to the control thread, which blocks it and waits for it between two ticks.
ARRIVAL = signal.SIGRTMIN


def listen(config: NriConfig) -> Doorbell | None:
    """Return the doorbell at the runtime's socket, if it is wanted. For the control thread."""
    if config.enabled is NriMode.OFF:
        return None
    if config.enabled is NriMode.AUTO and not Path(config.socket).exists():
        return None
    thread = threading.get_ident()
    return Doorbell(
        config.socket,
        config.answer_within_ns / NS_PER_SEC,
        lambda: signal.pthread_kill(thread, ARRIVAL),
    )
