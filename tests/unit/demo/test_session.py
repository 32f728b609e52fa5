# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Signals during a demonstration: the first ends it, later ones do not interrupt the cleanup."""

import signal

import pytest

from controller.demo.session import Interrupted, interruptible


def test_a_second_signal_does_not_interrupt_the_cleanup() -> None:
    cleaned = False
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught, interruptible():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            cleaned = True
    assert cleaned
    assert caught.value.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
