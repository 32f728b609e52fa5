# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A process of a job that needs memory; run as a program: ACCOUNT KIND SEED FILE

ACCOUNT gets the MiB of the pieces that are complete. *hog* holds 40 to 160 MiB for each piece,
which grow by 40 MiB per second, works on them for a second and gives them back. *reader*
reads FILE from the first to the last byte, again and again; a piece is a MiB of it.
"""

from collections.abc import Iterator
import os
import random
import sys
import time

__all__ = ("LEAST_MIB", "MOST_MIB")

MIB = 1 << 20
LEAST_MIB, MOST_MIB = 40, 160
_PAUSE_S, _HELD_S = 0.025, 1.0


def _hog(chance: random.Random) -> Iterator[int]:
    """Yield the MiB of each piece when it is complete."""
    while True:
        held = []
        for _ in range(chance.randint(LEAST_MIB, MOST_MIB)):
            held.append(b"x" * MIB)
            time.sleep(_PAUSE_S)
        time.sleep(_HELD_S)
        yield len(held)


def _reader(path: str) -> Iterator[int]:
    """Yield 1 for each MiB."""
    while True:
        with open(path, "rb", buffering=0) as file:
            while file.read(MIB):
                yield 1


def main() -> None:
    """Work until the process is killed."""
    account, kind, seed, path = sys.argv[1:]
    pieces = _hog(random.Random(seed)) if kind == "hog" else _reader(path)
    file = os.open(account, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    done = 0
    for mib in pieces:
        done += mib
        os.pwrite(file, b"%d" % done, 0)


if __name__ == "__main__":
    main()
