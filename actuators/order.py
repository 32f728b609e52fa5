# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: in which order the writes of one tick are made, and which of them belong together."""

from collections.abc import Iterable, Iterator, Mapping

from actuators.base import Actuator, Turn
from controller.decision import Action
from controller.model import Knob

__all__ = ("group", "order")


def order(actions: Iterable[Action], actuators: Mapping[Knob, Actuator]) -> list[Action]:
    """Return *actions* so that no write is refused only because it came too early.

    On v1 a child may at no moment be granted more than its parent; see ``base.Turn``.
    """

    def key(action: Action) -> tuple[Turn, int]:
        depth = len(list(_ancestors(action.target.path)))
        turn = actuators[action.knob].turn(action.previous, action.value)
        outer_first = turn in (Turn.MAKE, Turn.GIVE)
        return turn, depth if outer_first else -depth

    return sorted(actions, key=key)


def group(actions: Iterable[Action], actuators: Mapping[Knob, Actuator]) -> list[list[Action]]:
    """Split *actions* into groups that the kernel checks against each other, order kept.

    If one of a group is refused, the others of that group are taken back as well.
    """
    actions = list(actions)
    touched = {(action.knob, action.target.path) for action in actions}
    groups: dict[tuple[Knob, str], list[Action]] = {}
    for action in actions:
        top = action.target.path
        if actuators[action.knob].checks_ancestors:
            for ancestor in _ancestors(top):
                if (action.knob, ancestor) in touched:
                    top = ancestor
        groups.setdefault((action.knob, top), []).append(action)
    return list(groups.values())


def _ancestors(path: str) -> Iterator[str]:
    # "/a/b/c" has "/a/b", "/a" and "/"; the nearest first.
    while path not in ("/", ""):
        path = path.rpartition("/")[0] or "/"
        yield path
