# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: what a shaped link looks like, as numbers and as the text of ``Knob.TC_TREE``.

Each direction is one HTB: a class for the link, below it one per tier; the best-effort tier is
an inner class whose ceiling is the knob ``tc.ceiling``, with one leaf for everybody in it and
one for each limit of the configuration. A leaf's number is its minor class id, and what the
classifying programs return. HTB lends what is left over by priority, so the tiers borrow in
their order, after each has what it is guaranteed.
"""

from collections.abc import Iterable
from typing import NamedTuple

from controller.core.model import KnobValue, QosClass

__all__ = (
    "ABSENT",
    "ABSENT_CLSACT",
    "BEST_EFFORT",
    "CLASSIFIED",
    "CLASS_OF_TIER",
    "FIRST_LIMIT",
    "LINK_CLASS",
    "MAJOR",
    "TIER_CEILING",
    "HtbClass",
    "Shape",
    "Tree",
    "changed_limits",
    "decode",
    "encode",
    "htb_classes",
    "is_absent",
    "same_layout",
    "shape_of",
)

# Recognisable, and nothing that a program would set as SO_PRIORITY by accident: "SW".
MAJOR = 0x5357
CLASS_OF_TIER = {QosClass.SYSTEM: 1, QosClass.LS: 2, QosClass.BE: 3}
BEST_EFFORT = CLASS_OF_TIER[QosClass.BE]
FIRST_LIMIT = 4
LINK_CLASS = 0x100
TIER_CEILING = 0x103  # the class whose ceiling is tc.ceiling

ABSENT = KnobValue("absent")
# Nothing of ours, but an empty clsact that was there before and has to stay.
ABSENT_CLSACT = KnobValue("absent clsact")
CLASSIFIED = KnobValue("classified")

# A leaf below the best-effort tier owns next to nothing and borrows all from the tier, because
# HTB lets a class have its own rate even where its parent is at the ceiling.
_LEAF_BYTES_PER_S = 1000
# A packet before segmentation is up to 64 KiB; below that HTB would serve it in debt.
_BURST_BYTES = 65536
# At high rates a burst lasts 1 ms: HTB is late by less than that.
_BURSTS_PER_S = 1000
_QUANTUM_BYTES = 60000


class Shape(NamedTuple):
    """One direction, bytes per second: the link, and (guaranteed, most) of each tier.

    ``limits`` are the ceilings of the limited best-effort workloads, class numbers from
    ``FIRST_LIMIT`` on.
    """

    rate: int
    system: tuple[int, int]
    latency_sensitive: tuple[int, int]
    best_effort: tuple[int, int]
    limits: tuple[int, ...] = ()


class Tree(NamedTuple):
    """What is to be made of a link; a direction that is ``None`` is left alone."""

    egress: Shape | None
    ingress: Shape | None


class HtbClass(NamedTuple):
    """One class of HTB; ``parent`` and ``minor`` below the major number of the qdisc.

    Rates in bytes per second, bursts in bytes.
    """

    minor: int
    parent: int
    rate: int
    ceil: int
    prio: int
    burst: int
    cburst: int
    quantum: int = _QUANTUM_BYTES


def is_absent(value: str) -> bool:
    """Return whether nothing of ours is there."""
    return value in (ABSENT, ABSENT_CLSACT)


def _htb_class(minor: int, parent: int, rate: int, ceil: int, prio: int = 0) -> HtbClass:
    """Return a class with bursts that suit its rates."""
    rate = max(rate, _LEAF_BYTES_PER_S)
    return HtbClass(minor, parent, rate, ceil, prio, _burst_bytes(rate), _burst_bytes(ceil))


def _burst_bytes(rate: int) -> int:
    """Return the burst for a rate in bytes per second: one large packet, or 1 ms."""
    return max(_BURST_BYTES, rate // _BURSTS_PER_S)


def htb_classes(shape: Shape) -> tuple[HtbClass, ...]:
    """Return all classes of a direction, parents first."""
    system, sensitive, best_effort = CLASS_OF_TIER.values()
    return (
        _htb_class(LINK_CLASS, 0, shape.rate, shape.rate),
        _htb_class(system, LINK_CLASS, *shape.system, 0),
        _htb_class(sensitive, LINK_CLASS, *shape.latency_sensitive, 1),
        _htb_class(TIER_CEILING, LINK_CLASS, *shape.best_effort),
        _htb_class(best_effort, TIER_CEILING, 0, shape.rate, 2),
        *(
            _htb_class(number, TIER_CEILING, 0, ceil, 2)
            for number, ceil in enumerate(shape.limits, FIRST_LIMIT)
        ),
    )


def encode(tree: Tree) -> KnobValue:
    """Return the text of a tree: numbers of bytes per second, directions by name."""
    parts = [
        f"{name}={_encode_shape(shape)}"
        for name, shape in zip(Tree._fields, tree, strict=True)
        if shape is not None
    ]
    return KnobValue(" ".join(parts))


def decode(value: str) -> Tree:
    """Return the tree that *value* describes.

    :raises ValueError: it is not the text of a whole tree.
    """
    shapes: dict[str, Shape] = {}
    for part in value.split():
        name, _, text = part.partition("=")
        if name not in Tree._fields or name in shapes:
            raise ValueError(f"{value!r} does not describe a tree")
        shapes[name] = _decode_shape(text)
    if not shapes:
        raise ValueError("a tree without any direction")
    return Tree(shapes.get("egress"), shapes.get("ingress"))


def same_layout(one: Tree, other: Tree) -> bool:
    """Return whether both are the same tree, wherever the ceiling of best-effort work is."""
    return _settled(one) == _settled(other)


def changed_limits(one: Tree, other: Tree) -> tuple[dict[int, int], dict[int, int]] | None:
    """Return the limits of *other* that *one* has not, by class, for egress and for ingress.

    ``None``: the trees differ in more than limits and the ceiling of best-effort work.
    """
    if _settled(one, limits=False) != _settled(other, limits=False):
        return None
    egress, ingress = (
        {
            number: new
            for number, (old, new) in enumerate(
                zip(before.limits, after.limits, strict=True), FIRST_LIMIT
            )
            if new != old
        }
        if before is not None and after is not None
        else {}
        for before, after in zip(one, other, strict=True)
    )
    return egress, ingress


def _settled(tree: Tree, *, limits: bool = True) -> Tree:
    # Without what is moved in place: the tier's ceiling and, unless *limits*, those below it.
    def settle(shape: Shape) -> Shape:
        below = shape.limits if limits else (0,) * len(shape.limits)
        return shape._replace(best_effort=(shape.best_effort[0], 0), limits=below)

    return Tree(*(None if shape is None else settle(shape) for shape in tree))


def _encode_shape(shape: Shape) -> str:
    tiers = (shape.system, shape.latency_sensitive, shape.best_effort)
    pairs = (f"{guaranteed}-{most}" for guaranteed, most in tiers)
    return ",".join((str(shape.rate), *pairs, *map(str, shape.limits)))


def _decode_shape(text: str) -> Shape:
    rate, *rest = text.split(",")
    if len(rest) < 3:
        raise ValueError(f"{text!r} does not describe a direction")
    return Shape(
        int(rate), _pair(rest[0]), _pair(rest[1]), _pair(rest[2]), tuple(map(int, rest[3:]))
    )


def _pair(text: str) -> tuple[int, int]:
    guaranteed, _, most = text.partition("-")
    return int(guaranteed), int(most)


def shape_of(classes: Iterable[HtbClass]) -> Shape | None:
    """Return the direction that *classes* make up, ``None`` if one of them is missing."""
    by_minor = {c.minor: c for c in classes}
    system, sensitive, best_effort = CLASS_OF_TIER.values()
    needed = (LINK_CLASS, system, sensitive, TIER_CEILING, best_effort)
    if any(minor not in by_minor for minor in needed):
        return None
    tiers = [(c.rate, c.ceil) for c in (by_minor[m] for m in (system, sensitive, TIER_CEILING))]
    limits = tuple(by_minor[m].ceil for m in sorted(by_minor) if FIRST_LIMIT <= m < LINK_CLASS)
    return Shape(by_minor[LINK_CLASS].rate, tiers[0], tiers[1], tiers[2], limits)
