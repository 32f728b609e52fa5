# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sub-commands with their options, from the parser."""

import argparse
from collections.abc import Iterator

from controller.cli.main import COMMANDS, command
from tools.reference.markdown import code, table

__all__ = ("commands",)


def commands() -> Iterator[str]:
    """Yield a table of commands, and one of the options of each."""
    yield from table(
        ("command", ""),
        ((f"[`sweetpoint {name}`](#sweetpoint-{name})", command(name).HELP) for name in COMMANDS),
    )
    for name in COMMANDS:
        module = command(name)
        parser = argparse.ArgumentParser(prog=f"sweetpoint {name}", add_help=False)
        module.add_arguments(parser)
        yield f"### sweetpoint {name}\n"
        yield f"{module.HELP[0].upper()}{module.HELP[1:]}.\n"
        rows = [_row(parser, action) for action in parser._actions]
        if rows:
            yield from table(("argument", "meaning"), rows)
        yield f"\nExample: {code(module.EXAMPLE)}\n"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str]:
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.nargs != 0 if action.option_strings else action.choices:
        name += f" {value}"
    formatter = parser._get_formatter()
    meaning = formatter._expand_help(action) if action.help else ""
    default = action.default
    if default not in (None, False, argparse.SUPPRESS, []) and "default" not in meaning:
        meaning = f"{meaning} (default: {default})".strip()
    return code(name), meaning
