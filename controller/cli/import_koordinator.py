# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint import-koordinator``: converts Koordinator's central configuration."""

import argparse
from pathlib import Path

from controller.cli.common import DONE, FAILED, WRONG, fail, node_labels, whole_number

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "convert a slo-controller-config to a configuration and a profile"
EXAMPLE = "sweetpoint import-koordinator slo-controller-config.yaml --output converted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument(
        "file", metavar="FILE", help="kubectl get configmap slo-controller-config -o yaml; -: stdin"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="directory for config.yaml and koordinator.yaml (default: print both)",
    )
    parser.add_argument("--cpus", type=_positive, help="CPUs of a node, to convert percentages")
    parser.add_argument(
        "--cache-ways", type=_positive, help="ways of a node's L3 cache, to convert percentages"
    )
    parser.add_argument("--device", help="network device of a node to be shaped")
    parser.add_argument(
        "--node-labels",
        type=node_labels,
        metavar="KEY=VALUE,...",
        help="labels of a node: take what is for such nodes, and the rest of the cluster's",
    )


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 a file cannot be written, 2 wrong use or invalid input."""
    from controller.config.yaml_document import ConfigError
    from controller.kube.koordinator.convert import convert, write
    from controller.kube.koordinator.mapping import Facts

    facts = Facts(
        cpus=arguments.cpus,
        cache_ways=arguments.cache_ways,
        device=arguments.device or None,
        labels=arguments.node_labels,
    )
    try:
        files = convert(arguments.file, facts)
    except ConfigError as error:
        return fail(error, WRONG)
    if arguments.output is None:
        for name, text in files.items():
            print(f"# ---- {name}\n{text}")
        return DONE
    try:
        write(arguments.output, files)
    except OSError as error:
        return fail(error, FAILED)
    print(f"wrote {' and '.join(files)} to {arguments.output}; read their comments")
    return DONE


def _positive(text: str) -> int:
    number = whole_number(text)
    if number > 8192:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 8192")
    return number
