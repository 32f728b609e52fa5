# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint rollout`` with a faster clock: ``python -m tests.kube.fast_rollout BASE FASTER``.

The program, its loop and its Lease are the real ones; only their clocks and the waits between two
looks are those of ``FastClock``. Its options follow.
"""

from collections.abc import Set as AbstractSet
from functools import partial
import signal
import sys
from typing import Any
from unittest import mock

from controller.cli.main import main
from controller.kube import lease
from controller.rollout import loop
from tests.kube.fast_clock import FastClock


def run(clock: FastClock, words: list[str]) -> int:
    really_wait = signal.sigtimedwait

    def wait(signals: AbstractSet[Any], seconds: float) -> object:
        return really_wait({*signals}, clock.real_s(seconds))

    fast_loop = partial(loop.Loop, clock=clock.monotonic_s, wall_clock=clock.now_s)
    with (
        mock.patch.object(loop, "Loop", fast_loop),
        mock.patch.object(lease, "Lease", partial(lease.Lease, clock=clock.monotonic_s)),
        mock.patch.object(signal, "sigtimedwait", wait),
    ):
        return main(["rollout", *words])


if __name__ == "__main__":
    sys.exit(run(FastClock.of_words(*sys.argv[1:3]), sys.argv[3:]))
