# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of a hostile tenant (``lateness.c``) in its cgroups."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import subprocess

__all__ = ("SOURCE", "started")

SOURCE = Path(__file__).with_name("lateness.c")


@contextlib.contextmanager
def started(command: list[str], cgroups: list[Path]) -> Iterator[subprocess.Popen[str]]:
    """Start *command* in *cgroups*; kill it at the end."""
    join = "; ".join(f"echo $$ > {path}/cgroup.procs" for path in cgroups)
    with subprocess.Popen(
        ["sh", "-ec", f'{join}; exec "$@"', "-", *command], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
