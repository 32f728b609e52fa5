# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint`` that is sure after five windows, whatever else runs on the machine."""

import sys

from controller.cli.main import main
from controller.core.learning import normal, quiet, state


def learn_quickly() -> None:
    """Let the learner be sure at once."""
    state.LEAST_WINDOWS = 5  # type: ignore[attr-defined]
    state._LEAST_NS = 0
    normal._BLOCK = 1
    normal._DIFFER = 100.0
    quiet._OUTSIDE_SHARE = 100.0
    quiet._STEAL_SHARE = 100.0
    quiet._SETTLE_NS = 0


if __name__ == "__main__":
    learn_quickly()
    sys.exit(main())
