# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Searches inputs that a subject's check does not expect, guided by the coverage of the code.

usage: ``python -m tests.property.fuzz SUBJECT SECONDS FOLDER``. Inputs that reach new code are kept
in ``FOLDER/corpus``, one that fails in ``FOLDER/failed-*``; the exit code is then not 0. A process
of its own, because libFuzzer ends it.
"""

from pathlib import Path
from random import Random
import sys

import atheris

with atheris.instrument_imports(include=["controller", "actuators", "prometheus_client"]):
    from tests.support.hostile.subjects import SUBJECTS

_MAX_BYTES = 1 << 14
_SLOW_S = 10
_MEMORY_MIB = 1024


def main(name: str, seconds: int, folder: Path) -> None:
    """Search for *seconds*; does not return."""
    subject = SUBJECTS[name]
    corpus, home = folder / "corpus", folder / "home"
    for path in (corpus, home):
        path.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(subject.examples):
        (corpus / f"example-{number}").write_bytes(example)

    def mutate(raw: bytes, max_bytes: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(raw, max_bytes))
        return subject.mutate(random, raw)[:max_bytes]

    options = {
        "max_total_time": seconds,
        "max_len": _MAX_BYTES,
        "timeout": _SLOW_S,
        "rss_limit_mb": _MEMORY_MIB,
        "artifact_prefix": f"{folder}/failed-",
        "verbosity": 0,
        "print_final_stats": 1,
    }
    with subject.open(home) as check:
        arguments = [f"-{option}={value}" for option, value in options.items()]
        atheris.Setup([sys.argv[0], *arguments, str(corpus)], check, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
