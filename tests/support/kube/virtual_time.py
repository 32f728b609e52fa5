# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Clocks and waits of the agent's Kubernetes side, which a test moves: an hour takes a second."""

from collections.abc import Callable
import sys
import threading
from types import SimpleNamespace

import pytest

from tests.support.waiting import DEADLINE_S

__all__ = ("VirtualTime",)

_PACKAGE = "controller.kube."


class VirtualTime:
    """Stands for the module ``time``; it moves in ``advance`` only."""

    def __init__(self) -> None:
        self._now_s = 1.0e6
        self._condition = threading.Condition()
        self._deadlines_s: list[float] = []
        self.ended = False

    def monotonic(self) -> float:
        return self._now_s

    time = monotonic

    def monotonic_ns(self) -> int:
        return round(self._now_s * 1e9)

    time_ns = monotonic_ns

    def sleep(self, seconds: float) -> None:
        self.wait(seconds, lambda: False)

    def wait(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Wait until so much time has passed, or *is_over*, or the end of the test."""
        with self._condition:
            until_s = self._now_s + seconds
            self._deadlines_s.append(until_s)
            self._condition.notify_all()
            try:
                self._condition.wait_for(lambda: self.ended or self._now_s >= until_s or is_over())
            finally:
                self._deadlines_s.remove(until_s)

    def wake(self) -> None:
        """Let those that wait look again whether it is over."""
        with self._condition:
            self._condition.notify_all()

    def advance(self, seconds: float, waiting: int) -> None:
        """Move on when so many threads wait for a later time."""
        with self._condition:
            assert self._condition.wait_for(
                lambda: sum(each > self._now_s for each in self._deadlines_s) >= waiting,
                DEADLINE_S,
            )
            self._now_s += seconds
            self._condition.notify_all()

    def end(self) -> None:
        """Let nobody wait any more."""
        with self._condition:
            self.ended = True
            self._condition.notify_all()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Give this clock to the imported modules of the Kubernetes side and to their watches.

        A default argument keeps the function that it was made from, so it is replaced too.
        """
        import time

        functions = {
            getattr(time, name): getattr(self, name)
            for name in ("monotonic", "monotonic_ns", "time", "time_ns")
        }
        for module in [each for name, each in sys.modules.items() if name.startswith(_PACKAGE)]:
            if getattr(module, "time", None) is time:
                monkeypatch.setattr(module, "time", self)
            for found in [each for each in vars(module).values() if isinstance(each, type)]:
                self._replace_defaults(found, functions, monkeypatch)
        threads = SimpleNamespace(Thread=threading.Thread, Event=lambda: _Event(self))
        monkeypatch.setattr("controller.kube.client.watch.threading", threads)

    def _replace_defaults(
        self,
        found: type,
        functions: dict[object, object],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        init = vars(found).get("__init__")
        for name, values in (
            ("__defaults__", getattr(init, "__defaults__", None) or ()),
            ("__kwdefaults__", (getattr(init, "__kwdefaults__", None) or {}).values()),
        ):
            if any(each is function for each in values for function in functions):
                before = getattr(init, name)
                after: object = (
                    tuple(functions.get(each, each) for each in before)
                    if isinstance(before, tuple)
                    else {key: functions.get(each, each) for key, each in before.items()}
                )
                monkeypatch.setattr(init, name, after)


class _Event(threading.Event):
    """An event whose waits take virtual time."""

    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock

    def set(self) -> None:
        super().set()
        self._clock.wake()

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.wait(timeout or 0.0, self.is_set)
        return self.is_set()
