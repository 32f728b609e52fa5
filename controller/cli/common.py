# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the sub-commands: exit codes, error messages, and how an agent is named."""

import argparse
from datetime import datetime
import os
from pathlib import Path
import sys
from typing import TYPE_CHECKING, TextIO

from controller.host.os_errors import sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.host.running_agents import RunningAgent

__all__ = (
    "DONE",
    "FAILED",
    "FIRST_CONFIG",
    "WRONG",
    "WrongAgentError",
    "add_agent",
    "add_config",
    "add_data_dir",
    "add_directories",
    "add_source",
    "add_state_dir",
    "clock",
    "discard",
    "fail",
    "find_config",
    "find_data_dir",
    "find_state_dir",
    "find_unwritable",
    "node_labels",
    "rfc3339",
    "wall_time_s",
    "whole_number",
)

# Exit codes: success, failure, wrong use or invalid configuration.
DONE, FAILED, WRONG = 0, 1, 2
_CONFIG = Path("/etc/sweetpoint/config.yaml")
FIRST_CONFIG = f"make one with 'sweetpoint init --write {_CONFIG}'"


class WrongAgentError(Exception):
    """The options name no agent, or there are several; the message says what to do."""


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option for the configuration file of a new agent to *parser*."""
    parser.add_argument(
        "--config", type=Path, default=_CONFIG, help="configuration file (default: %(default)s)"
    )


def add_agent(parser: argparse.ArgumentParser) -> None:
    """Add the option that names an agent, which all commands have, to *parser*."""
    parser.add_argument(
        "--config",
        type=Path,
        help="configuration file of the agent "
        f"(default: that of the agent that runs on this host, otherwise {_CONFIG})",
    )


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that needs the state directory of an agent to *parser*."""
    add_agent(parser)
    _add_state_dir(parser)


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that reads the history of an agent to *parser*."""
    add_agent(parser)
    _add_data_dir(parser)


def add_directories(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that needs both directories of an agent to *parser*."""
    add_agent(parser)
    _add_state_dir(parser)
    _add_data_dir(parser)


def _add_state_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        type=Path,
        help="state directory of the agent, if the configuration cannot be read "
        "(default: that of the agent)",
    )


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="data directory with the history, such as a copy from another host "
        "(default: that of the agent)",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options that name an agent by its pages, on another host too, to *parser*."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--url", help="address of an agent's pages, such as http://host:9464")
    source.add_argument(
        "--node", metavar="NAME", help="the agent of this node of the cluster, by kubectl exec"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="bearer token of the pages, for --url"
    )


def find_config(arguments: argparse.Namespace) -> Path:
    """Return the configuration file of the agent that the options name.

    :raises WrongAgentError: they name none, and no agent runs on this host, or several do.
    """
    config = _config(arguments)
    if config == _CONFIG and not _CONFIG.exists():
        raise WrongAgentError(
            f"no agent runs on this host, and there is no {_CONFIG}: {FIRST_CONFIG}, or name a "
            "file with --config"
        )
    return config


def _config(arguments: argparse.Namespace) -> Path:
    if arguments.config is None:
        running = _running()
        arguments.config = _CONFIG if running is None or running.config is None else running.config
    found: Path = arguments.config
    return found


def find_state_dir(arguments: argparse.Namespace) -> Path:
    """Return the state directory of the agent that the options name.

    Without an agent that runs, and a configuration in the usual place, it is the usual directory.
    One that --state-dir names must exist, because what is done in a mistyped one reaches no agent.

    :raises WrongAgentError: it does not, the configuration cannot be used, or several agents run.
    """
    from controller.config.state_dir import DEFAULT_STATE_DIR, read_state_dir

    named: Path | None = getattr(arguments, "state_dir", None)
    if named is not None:
        if not named.is_dir():
            raise WrongAgentError(f"--state-dir {named}: there is no such directory")
        arguments.config = arguments.config or _config_of(named)
        return named
    if arguments.config is None and (running := _running()) is not None:
        arguments.config = running.config or _CONFIG
        return running.state_dir
    return _directory(arguments, read_state_dir, DEFAULT_STATE_DIR, "state")


def find_data_dir(arguments: argparse.Namespace) -> Path:
    """Return the data directory of the agent that the options name.

    :raises WrongAgentError: the configuration cannot be used, or several agents run.
    """
    from controller.config.state_dir import DEFAULT_DATA_DIR, read_data_dir

    named: Path | None = getattr(arguments, "data_dir", None)
    return named or _directory(arguments, read_data_dir, DEFAULT_DATA_DIR, "data")


def _directory(
    arguments: argparse.Namespace, read: "Callable[[Path], Path | None]", usual: str, kind: str
) -> Path:
    from controller.config.yaml_document import ConfigError

    otherwise = ""
    if hasattr(arguments, f"{kind}_dir"):
        otherwise = f"; the {kind} directory can be named with --{kind}-dir instead"
    config = _config(arguments)
    if config == _CONFIG and not _CONFIG.exists():
        return Path(usual)
    try:
        found = read(config)
    except (ConfigError, OSError) as error:
        raise WrongAgentError(f"{sentence(error)}{otherwise}") from None
    if found is None:
        raise WrongAgentError(f"{config}: {kind}_dir is not an absolute path{otherwise}")
    return found


def _running() -> "RunningAgent | None":
    """Return the agent that runs on this host; ``None`` if none does.

    :raises WrongAgentError: several run.
    """
    from controller.host.running_agents import running_agents

    found = running_agents()
    if len(found) > 1:
        named = " or ".join(f"--config {each.config or _CONFIG}" for each in found)
        raise WrongAgentError(f"{len(found)} agents run on this host; say which one: {named}")
    return found[0] if found else None


def _config_of(state_dir: Path) -> Path:
    """Return the configuration of the agent that runs with *state_dir*, otherwise the usual one."""
    from controller.host.running_agents import running_agents

    wanted = state_dir.resolve()
    found = (each.config for each in running_agents() if each.state_dir.resolve() == wanted)
    return next(found, None) or _CONFIG


def clock(time_ns: float) -> str:
    """Return *time_ns* (since 1970) as a time of this host, with the name of its zone."""
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def rfc3339(time_ns: float) -> str:
    """Return *time_ns* (since 1970) as a time of this host in RFC 3339, for programs."""
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().isoformat(timespec="milliseconds")


def node_labels(text: str) -> dict[str, str]:
    """Return the labels in *text*, such as ``a=b,c=d``, for an option.

    :raises argparse.ArgumentTypeError: they have another form.
    """
    pairs = [each.partition("=") for each in text.split(",") if each]
    wrong = [key for key, equals, _ in pairs if not key or not equals]
    if wrong or not pairs:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE,...")
    return {key: value for key, _, value in pairs}


def wall_time_s(text: str) -> float:
    """Return the moment *text* in seconds since 1970, for an option.

    Without an offset from UTC it is a time of this host.

    :raises argparse.ArgumentTypeError: it is not in RFC 3339, or outside the years 1971 to 2199.
    """
    try:
        found = datetime.fromisoformat(text)
        if 1970 < found.year < 2200:
            return found.timestamp()
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-11-27T08:00+01:00")


def whole_number(text: str) -> int:
    """Return the number in *text*, from 1 on, for an option.

    :raises argparse.ArgumentTypeError: it is none.
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number


def find_unwritable(path: Path | None) -> str:
    """Return why the file *path* cannot be made, found before long work; empty if it can."""
    if path is None or os.access(path if path.exists() else path.parent, os.W_OK):
        return ""
    if path.exists() or path.parent.is_dir():
        return f"{path} cannot be written"
    return f"{path.parent} is no directory"


def fail(error: object, code: int) -> int:
    """Print *error* to stderr and return *code*, the exit code of the command."""
    text = sentence(error) if isinstance(error, OSError) else error
    try:
        print(f"sweetpoint: {text}", file=sys.stderr)
    except OSError:
        discard(sys.stderr)
    return code


def discard(stream: TextIO) -> None:
    """Have what *stream* holds and gets go nowhere, so that the flush at exit does not fail.

    See "Note on SIGPIPE" in the documentation of Python's module signal.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
