# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""BPF programs that earlier tests compiled, for the agents of later ones.

A compilation takes a second of CPU time, and each agent of a test has a new, empty state directory.
A program's name is the hash of all that it depends on, so a changed source is compiled.
"""

from contextlib import suppress
import os
from pathlib import Path
import shutil

import yaml

__all__ = ("collect", "keep_in", "lend", "shared")

# As many as an agent keeps (controller/probes/bpf/program_cache.py).
_MOST = 32
_cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sweetpoint/programs"


def keep_in(directory: Path) -> None:
    """Use *directory*, and not that of the user."""
    global _cache
    _cache = directory


def shared(name: str) -> Path:
    """Return the directory *name* of compiled programs, which is made if it is missing."""
    path = _cache / name
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def lend(config: Path) -> None:
    """Give the state directory of the agent with *config*, if it is new, all that is known."""
    state = _state_dir(config)
    if not state.exists():
        state.mkdir(mode=0o700, parents=True)
        for name in ("agents", "tests"):
            _copy(shared(name), state / "programs")


def collect(config: Path) -> None:
    """Keep what the agent with *config* compiled, and drop the oldest programs beyond a limit."""
    kept = shared("agents")
    _copy(_state_dir(config) / "programs", kept)
    with suppress(FileNotFoundError):  # another process of the tests does the same
        files = sorted(kept.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        for file in files[:-_MOST]:
            file.unlink()


def _state_dir(config: Path) -> Path:
    return Path(yaml.safe_load(config.read_text())["state_dir"])


def _copy(source: Path, target: Path) -> None:
    target.mkdir(mode=0o700, exist_ok=True)
    for file in source.glob("*"):
        # Not what a killed agent was writing.
        if ".new-" not in file.name and not (target / file.name).exists():
            # Another process of the tests may do the same, or drop it.
            part = target / f"{file.name}.new-{os.getpid()}"
            with suppress(FileNotFoundError):
                shutil.copyfile(file, part)
                part.chmod(0o600)
                part.replace(target / file.name)
