# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Order and grouping of the writes of one tick, and the back-off after a refused write.

All functions and classes are pure: the caller passes the time.
"""

from collections.abc import Iterable, Iterator, Mapping
import errno
from typing import NamedTuple

from actuators.base import Actuator, Phase
from controller.core.decision import Action
from controller.core.model import Knob, Target
from controller.core.units import NS_PER_SEC

__all__ = (
    "Backoff",
    "Refusal",
    "group_actions",
    "is_passing",
    "order_actions",
)


def order_actions(actions: Iterable[Action], actuators: Mapping[Knob, Actuator]) -> list[Action]:
    """Return *actions* in an order in which no write is refused only for its order.

    On cgroup v1 a child may at no time have a higher quota than its parent; see ``base.Phase``.
    """

    def key(action: Action) -> tuple[Phase, int]:
        depth = len(list(_ancestors(action.target.path)))
        phase = actuators[action.knob].phase(action.previous, action.value)
        outer_first = phase in (Phase.CREATE, Phase.LOOSEN)
        return phase, depth if outer_first else -depth

    return sorted(actions, key=key)


def group_actions(
    actions: Iterable[Action], actuators: Mapping[Knob, Actuator]
) -> list[list[Action]]:
    """Split *actions* into groups that the kernel checks against each other, in given order.

    If one action of a group is refused, the executor reverts the others of that group.
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
    # The ancestors of "/a/b/c" are "/a/b", "/a" and "/", nearest first.
    while path not in ("/", ""):
        path = path.rpartition("/")[0] or "/"
        yield path


_FIRST_NS = 1 * NS_PER_SEC
_LONGEST_NS = 60 * NS_PER_SEC
# A knob whose write is still wanted is tried again when its back-off ends. One that was not tried
# for this long after that is no longer written, mostly because its target is gone.
_KEEP_NS = 600 * NS_PER_SEC
# Most refusals that are kept: a tenant may make and remove a thousand cgroups per second. It is
# more than the knobs that are written on a large node.
_MAX_KEPT = 10_000


class Refusal(NamedTuple):
    """The last refusal of a knob; ``times`` counts refusals since the last success."""

    times: int
    retry_at_ns: int
    errno: int
    message: str


def is_passing(knob: Knob, code: int) -> bool:
    """Return whether a refusal with the error number *code* depends on the moment.

    A limit of memory is refused while more than it is in use, which changes within milliseconds.
    """
    return knob is Knob.MEMORY_MAX and code == errno.EBUSY


class Backoff:
    """Refusals by target and knob: 1 s of back-off after the first, doubling up to 60 s.

    None after a refusal that ``is_passing``.

    A refusal is dropped ten minutes after its back-off has ended, of more than 10,000 the oldest.
    """

    def __init__(self) -> None:
        # The last refusals, the oldest first.
        self._refusals: dict[tuple[Target, Knob], Refusal] = {}

    def waiting(self, target: Target, knob: Knob, now_ns: int) -> Refusal | None:
        """Return the last refusal of a knob if its back-off has not ended."""
        refusal = self._refusals.get((target, knob))
        return refusal if refusal is not None and now_ns < refusal.retry_at_ns else None

    def refused(self, target: Target, knob: Knob, now_ns: int, code: int, message: str) -> Refusal:
        """Count a refusal and return it, with the time of the next try."""
        before = self._refusals.pop((target, knob), None)
        times = 1 if before is None else before.times + 1
        wait_ns = min(_FIRST_NS << min(times - 1, 10), _LONGEST_NS)
        if is_passing(knob, code):
            wait_ns = 0
        refusal = Refusal(times, now_ns + wait_ns, code, message)
        self._refusals[target, knob] = refusal
        self._prune(now_ns)
        return refusal

    def clear(self, target: Target, knob: Knob) -> None:
        """Drop the refusals of a knob that was written, or whose target no longer exists."""
        self._refusals.pop((target, knob), None)

    def _prune(self, now_ns: int) -> None:
        while self._refusals:
            oldest = next(iter(self._refusals))
            kept_until_ns = self._refusals[oldest].retry_at_ns + _KEEP_NS
            if len(self._refusals) <= _MAX_KEPT and now_ns < kept_until_ns:
                break
            del self._refusals[oldest]
