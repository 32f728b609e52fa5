# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Waiting for an answer of programs that are starting: an error is no answer yet."""

from collections.abc import Callable, Iterable
import time
from typing import Protocol, TypeVar

from tests.kube.client import Refused
from tests.support.waiting import DEADLINE_S, eventually

__all__ = ("Program", "answer")

_Found = TypeVar("_Found")
# A question costs a handshake or a process; in the test kernel it costs ten times as much.
_PAUSE_S = DEADLINE_S / 1200


class Program(Protocol):
    """A program that a test has started."""

    def check(self) -> None:
        """Check that it runs.

        :raises DemoError: it has ended.
        """


def answer(what: str, ask: Callable[[], _Found | None], programs: Iterable[Program] = ()) -> _Found:
    """Return the first true answer of *ask*; refused and failed requests count as none.

    :param programs: must run until then.
    """
    failure: Exception | None = None

    def attempt() -> _Found | None:
        nonlocal failure
        for program in programs:
            program.check()
        try:
            found = ask()
        except (OSError, Refused, AssertionError) as error:
            failure, found = error, None
        if not found:
            time.sleep(_PAUSE_S)
        return found

    try:
        found = eventually(what, attempt)
    except AssertionError as error:
        error.add_note(f"the last failure: {failure}")
        raise
    assert found is not None
    return found
