# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Plain words for names that programs read; docs/OPERATIONS.md defines them."""

from collections.abc import Mapping

from controller.core.decision import ChannelState

__all__ = ("state_words",)

_STATES: Mapping[str, str] = {
    ChannelState.SELF: "own limit",
    ChannelState.STEAL: "host",
    ChannelState.NOT_BE: "other cause",
    ChannelState.HOLD: "no data",
    ChannelState.SAFE: "safe state",
    "other": "other service",
}


def state_words(state: str) -> str:
    """Return what people read for the state of a channel; as it is, if it is a plain word."""
    return _STATES.get(state, state)
