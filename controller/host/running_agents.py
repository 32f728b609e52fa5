# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agents that run on this host, found by their processes.

A process counts as an agent if it belongs to root, its command line is that of ``sweetpoint run``,
and it has the file open that is the lock of a state directory and names this process. The last
part cannot be made up by a command line in a container. "This host" is the network namespace:
elsewhere the agent's pages could not be asked. The scan needs root: links of other users'
descriptors cannot be read. Standard library only.
"""

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from controller.host.state_dir import owners

__all__ = ("RunningAgent", "running_agents")

PROC = Path("/proc")
_LOCK = "/lock"
# How the command can have been started: by its script, or as a module of Python.
_PROGRAMS = ("sweetpoint", "controller.cli.main", "main.py")
_MOST_BEFORE = 4  # "python -P -m controller.cli.main"


class RunningAgent(NamedTuple):
    """An agent by its files: the configuration is ``None`` where it is the usual one."""

    state_dir: Path
    config: Path | None


def running_agents() -> list[RunningAgent]:
    """Return the agents that run on this host, in the order of their state directories.

    A guardian and its agent are one. Without root the list is empty.
    """
    found = {}
    with contextlib.suppress(OSError):
        for process in PROC.iterdir():
            if process.name.isdigit() and (agent := _agent(process)) is not None:
                found[agent.state_dir] = agent
    return [found[state_dir] for state_dir in sorted(found)]


def _agent(process: Path) -> RunningAgent | None:
    try:
        if process.stat().st_uid != 0 or not _shares_network(process):
            return None
        words = process.joinpath("cmdline").read_bytes().decode(errors="surrogateescape")
        options = _options_of_run(words.split("\0")[:-1])
        if options is None:
            return None
        state_dir = _state_dir(process)
        config = _config(options)
        if state_dir is None or config is None:
            return None if state_dir is None else RunningAgent(state_dir, None)
        return RunningAgent(state_dir, (process / "cwd").readlink() / config)
    except OSError:
        return None  # it ended, or it is another user's


def _shares_network(process: Path) -> bool:
    network = Path("ns", "net")
    return os.path.samestat((process / network).stat(), ("/proc/self" / network).stat())


def _options_of_run(words: Sequence[str]) -> Sequence[str] | None:
    """Return what follows ``run`` on the command line *words*; ``None`` if it is another one."""
    with contextlib.suppress(ValueError):
        names = [Path(word).name for word in words[:_MOST_BEFORE]]
        program = min(names.index(each) for each in _PROGRAMS if each in names)
        return words[words.index("run", program + 1) + 1 :]
    return None


def _config(options: Sequence[str]) -> Path | None:
    # As the command line itself does, with abbreviations and both spellings of a value.
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--config", type=Path)
    try:
        found: Path | None = parser.parse_known_args(options)[0].config
    except argparse.ArgumentError:
        return None
    return found


def _state_dir(process: Path) -> Path | None:
    for descriptor, target in _links(process / "fd"):
        if target.endswith(_LOCK):
            state_dir = Path(target).parent
            # The link is a path of the process, which may have another root.
            with contextlib.suppress(OSError):
                same = os.path.samestat(descriptor.stat(), Path(target).stat())
                if same and int(process.name) in owners(state_dir):
                    return state_dir
    return None


def _links(directory: Path) -> Iterator[tuple[Path, str]]:
    for link in directory.iterdir():
        with contextlib.suppress(OSError):
            yield link, str(link.readlink())
