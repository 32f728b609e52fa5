# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint release``: restores every knob."""

import argparse
import sys

from controller.cli.common import DONE, FAILED, add_state_dir, fail, find_state_dir

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "restore every knob to its original value"
EXAMPLE = "sweetpoint release --stop"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument("--stop", action="store_true", help="stop a running agent first")
    add_state_dir(parser)


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 everything restored, 1 not everything, 2 no such directory."""
    from controller.agent.restore import release

    state_dir = find_state_dir(arguments)
    code = release(state_dir, stop=arguments.stop)
    if code == DONE or arguments.stop:
        from controller.kube.cleanup import remove_overload_taint

        done, text = remove_overload_taint(state_dir)
        if text:
            print(text, file=sys.stdout if done else sys.stderr)
        code = code if done else FAILED
    return code if _remove_own_cgroup() else FAILED


def _remove_own_cgroup() -> bool:
    from controller.host.os_errors import reason
    from controller.host.own_cgroup import OWN_CGROUP, remove_own_cgroup

    try:
        if remove_own_cgroup():
            print(f"removed   cgroup {OWN_CGROUP}, which a killed agent left")
    except OSError as error:
        fail(f"cannot remove cgroup {OWN_CGROUP}: {reason(error)}", FAILED)
        return False
    return True
