# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Things of the kernel, or processes, that exist for a block of code."""

from abc import ABC, abstractmethod
from typing import Self

__all__ = ("Temporary",)


class Temporary(ABC):
    """What is made at the begin of a ``with`` block and removed at its end."""

    def __enter__(self) -> Self:
        try:
            self.make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def make(self) -> None:
        """Make it. If this fails, ``close`` removes what was made so far."""

    @abstractmethod
    def close(self) -> None:
        """Remove it, complete or partial."""
