# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a command of kubectl, Helm, docker or kind that a document tells to run."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from functools import reduce
import io
from pathlib import Path
from typing import Any

from helm_python import parse_set_json, parse_set_string

from controller.cli.main import parser

__all__ = ("KUBECTL", "chart_values", "problems", "split")

_ROOT = Path(__file__).parents[2]
_AGENT = "/opt/sweetpoint/bin/sweetpoint"
# Options of sub-commands; those that end with = have a value.
KUBECTL: dict[str, tuple[str, ...]] = {
    "create namespace": (),
    "create deployment": ("--image=",),
    "label namespace": (),
    "set resources": ("--requests=",),
    "rollout status": (),
    "exec": (),
    "port-forward": (),
    "annotate node": (),
    "delete deployment": (),
    "delete namespace": (),
}
_VALUES = ("--namespace=", "--set=", "--set-json=")
_COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "kubectl": {name: ("--namespace=", *options) for name, options in KUBECTL.items()},
    "helm": {
        "install": _VALUES,
        "upgrade": (*_VALUES, "--reuse-values"),
        "uninstall": ("--namespace=",),
    },
    "docker": {"build": ("--file=", "--build-arg=", "--tag="), "save": ()},
    "kind": {
        "create cluster": ("--name=",),
        "load docker-image": ("--name=",),
        "delete cluster": ("--name=",),
    },
    "k3s": {"ctr images import": ()},
}


def split(words: Sequence[str], valued: Iterable[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the operands and the options of *words*; those in *valued* take the next word."""
    operands, options = [], []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            operands.append(word)
        elif equals or f"{name}=" not in valued:
            options.append((name, value))
        else:
            options.append((name, next(rest, "")))
    return operands, options


def problems(words: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the command *words*, of a program with a table here."""
    program, *arguments = words
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own, inner = arguments[:at], arguments[at + 1 :]
    valued = {each for options in _COMMANDS[program].values() for each in options}
    operands, options = split(own, valued)
    text = " ".join(operands)
    names = [name for name in _COMMANDS[program] if f"{text} ".startswith(f"{name} ")]
    if not names:
        yield f"{program} has no command {text}"
        return
    known = {option.rstrip("=") for option in _COMMANDS[program][names[0]]}
    yield from (f"unknown option {name}" for name, _ in options if name not in known)
    yield from (f"no file {path}" for path in operands if not _exists(path))
    if inner and inner[0] == _AGENT:
        yield from _agent_problems(inner[1:])


def chart_values(words: Sequence[str]) -> dict[str, Any]:
    """Return the values that a command of Helm sets."""
    parsers = {"--set": parse_set_string, "--set-json": parse_set_json}
    _, options = split(words, _VALUES)
    given = [parsers[name](value) for name, value in options if name in parsers]
    return reduce(_merged, given, {})


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    nested = {
        key: _merged(one[key], value)
        for key, value in other.items()
        if isinstance(value, dict) and isinstance(one.get(key), dict)
    }
    return {**one, **other, **nested}


def _exists(path: str) -> bool:
    return not path.startswith(("deploy/", "docs/")) or (_ROOT / path).exists()


def _agent_problems(words: list[str]) -> Iterator[str]:
    output = io.StringIO()
    parsed = False
    with redirect_stderr(output), suppress(SystemExit):
        parser().parse_args(words)
        parsed = True
    if not parsed:
        yield output.getvalue()
