# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint retire``: stops all agents of a DaemonSet before it is removed."""

import argparse
from pathlib import Path

from controller.cli.common import DONE, FAILED, fail

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "stop all agents of a DaemonSet in this cluster"
EXAMPLE = "sweetpoint retire sweetpoint-system sweetpoint --timeout 120"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument("namespace")
    parser.add_argument("daemonset")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="time limit in seconds (default: %(default)s)",
    )
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's own service account")


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 failed."""
    from controller.kube.cleanup import RetireError, retire
    from controller.kube.client.api import Api
    from controller.kube.client.errors import ApiError, ApiUnreachable

    try:
        api = Api(arguments.kubeconfig)
        retire(api, arguments.namespace, arguments.daemonset, arguments.timeout)
    except (ApiError, ApiUnreachable, RetireError) as error:
        return fail(error, FAILED)
    return DONE
