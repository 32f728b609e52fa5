# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint import-koordinator``: what it takes from the command line.

Everything else is imported when the command runs, because the command line is read by
processes that have to stay small.
"""

import argparse
from pathlib import Path
import sys

__all__ = ("add_arguments", "main")

_DONE, _FAILED, _WRONG = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument(
        "file", metavar="FILE", help="kubectl get configmap slo-controller-config -o yaml; -: stdin"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="write config.yaml and koordinator.yaml there; without it both are printed",
    )
    parser.add_argument("--cpus", type=_positive, help="CPUs of a node, for shares of them")
    parser.add_argument(
        "--cache-ways", type=_positive, help="ways of a node's last-level cache, for shares of them"
    )
    parser.add_argument("--device", help="network device of a node, to shape it")


def main(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code: 0 done, 1 cannot write, 2 wrong use or input."""
    from controller.configfile import ConfigError
    from controller.koordinator.files import convert, write
    from controller.koordinator.mapping import Facts

    facts = Facts(
        cpus=arguments.cpus, cache_ways=arguments.cache_ways, device=arguments.device or None
    )
    try:
        files = convert(arguments.file, facts)
    except ConfigError as error:
        print(f"sweetpoint: {error}", file=sys.stderr)
        return _WRONG
    if arguments.output is None:
        for name, text in files.items():
            print(f"# ---- {name}\n{text}")
        return _DONE
    try:
        write(arguments.output, files)
    except OSError as error:
        print(f"sweetpoint: {error.filename}: {error.strerror}", file=sys.stderr)
        return _FAILED
    print(f"wrote {' and '.join(files)} to {arguments.output}; read their comments")
    return _DONE


def _positive(text: str) -> int:
    number = int(text)
    if not 0 < number <= 8192:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 8192")
    return number
