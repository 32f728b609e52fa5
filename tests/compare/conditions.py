# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The conditions of a comparison: what it needs, and facts of the machine and the programs."""

from collections.abc import Iterable
from pathlib import Path
import shutil
import subprocess

from controller.demo.session import describe, first_line, missing_for
from controller.host.facts import find_cgroup_layout
from tests.compare.plan import Mix
from tests.compare.services import POSTGRES_BINARIES

__all__ = ("facts", "missing")

_SERVICE_PROGRAMS = {
    "memcached-remote": "memcached",
    "redis": "redis-server",
    "postgres": "pgbench",
}
_JOB_PROGRAMS = {"ffmpeg": "ffmpeg", "xz": "xz", "compiler": "gcc", "upload": "iperf3"}
_ROOT = Path(__file__).resolve().parents[2]


def missing(mixes: Iterable[Mix]) -> list[str]:
    """Return what this host lacks to run *mixes*, each with the way to get it."""
    programs = {"stress-ng", "ip", "tc", "nsenter", "unshare"}
    for mix in mixes:
        programs.add(_SERVICE_PROGRAMS.get(mix.service, mix.service))
        programs.add(_JOB_PROGRAMS.get(mix.job, "stress-ng"))
    lacking = sorted(program for program in programs if shutil.which(program) is None)
    if "pgbench" in programs and not list(POSTGRES_BINARIES.glob("*/bin/initdb")):
        lacking.append("postgres")
    found = [f"{program} missing: tools/bootstrap bench installs it" for program in lacking]
    return missing_for(()) + found


def facts(seconds: float) -> dict[str, str]:
    """Return names and values of the conditions of blocks of *seconds*."""
    found = dict(describe(()))
    versions = [
        found.pop("programs"),
        *(first_line(*command) for command in _VERSIONS if shutil.which(command[0])),
    ]
    return {
        **found,
        "cgroup": find_cgroup_layout().version,
        "commit": _commit(),
        "programs": "; ".join(versions),
        "block": f"{seconds:g} s",
    }


_VERSIONS = (
    ("memcached", "-V"),
    ("redis-server", "--version"),
    ("pgbench", "--version"),
    ("ffmpeg", "-version"),
    ("stress-ng", "--version"),
    ("gcc", "--version"),
    ("xz", "--version"),
    ("iperf3", "--version"),
)


def _commit() -> str:
    command = ("git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
