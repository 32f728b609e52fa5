# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One kind of input."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random

__all__ = ("Check", "Mutate", "Subject")

Check = Callable[[bytes], None]
Mutate = Callable[[Random, bytes], bytes]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Input of one kind: valid ``examples``, and how one of them or any other input is changed.

    ``open`` prepares a check with an empty directory for its files. The check raises unless the
    input is used, or refused in the documented way.
    """

    examples: tuple[bytes, ...]
    mutate: Mutate
    open: Callable[[Path], AbstractContextManager[Check]]
