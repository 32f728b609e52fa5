# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The tree of a shaped link: as numbers, as HTB classes, and as the text of ``Knob.TC_TREE``.

All functions are pure. Each direction is one HTB: a class for the link and, below it, one for each
tier. The best-effort tier is an inner class, whose ceiling is the knob ``tc.ceiling``. It has one
leaf for each limit of the configuration, and one for all other best-effort work. The number of a
leaf is its minor class id and the return value of the classifying programs. HTB lends spare
bandwidth by priority: after every tier has its guaranteed rate, the tiers borrow in their order.
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

# "SW" in ASCII: recognisable, and unlikely as an SO_PRIORITY that a program sets for its sockets.
MAJOR = 0x5357
CLASS_OF_TIER = {QosClass.SYSTEM: 1, QosClass.LS: 2, QosClass.BE: 3}
BEST_EFFORT = CLASS_OF_TIER[QosClass.BE]
FIRST_LIMIT = 4
LINK_CLASS = 0x100
TIER_CEILING = 0x103  # the class that has tc.ceiling

ABSENT = KnobValue("absent")
# Nothing of ours, but an empty clsact that existed before and has to stay.
ABSENT_CLSACT = KnobValue("absent clsact")
CLASSIFIED = KnobValue("classified")

# Rate of the leaves of the best-effort tier: as low as possible, so that they borrow from the tier.
# HTB serves a class up to its own rate even if its parent is at the ceiling.
_LEAF_BYTES_PER_S = 1000
# A packet before segmentation has up to 64 KiB; with a smaller burst HTB would serve it in debt.
_BURST_BYTES = 65536
# At high rates a burst lasts 1 ms, which is more than the delay of HTB's timer.
_BURSTS_PER_S = 1000
_QUANTUM_BYTES = 60000


class Shape(NamedTuple):
    """One direction, in bytes per second: the link, and (guaranteed, ceiling) of each tier.

    ``limits`` has the ceilings of limited best-effort workloads; their class numbers begin at
    ``FIRST_LIMIT``.
    """

    rate: int
    system: tuple[int, int]
    latency_sensitive: tuple[int, int]
    best_effort: tuple[int, int]
    limits: tuple[int, ...] = ()


class Tree(NamedTuple):
    """The shapes of both directions of a link; ``None`` for a direction without shaping."""

    egress: Shape | None
    ingress: Shape | None


class HtbClass(NamedTuple):
    """One class of HTB; ``minor`` and ``parent`` are minor numbers.

    Rates are in bytes per second, bursts and the quantum in bytes.
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
    """Return whether *value* means that the link has nothing of ours."""
    return value in (ABSENT, ABSENT_CLSACT)


def _htb_class(minor: int, parent: int, rate: int, ceil: int, prio: int = 0) -> HtbClass:
    """Return a class with the bursts for its rates."""
    rate = max(rate, _LEAF_BYTES_PER_S)
    return HtbClass(minor, parent, rate, ceil, prio, _burst_bytes(rate), _burst_bytes(ceil))


def _burst_bytes(rate: int) -> int:
    """Return the burst for a rate in bytes per second: one large packet, or 1 ms."""
    return max(_BURST_BYTES, rate // _BURSTS_PER_S)


def htb_classes(shape: Shape) -> tuple[HtbClass, ...]:
    """Return all classes of a direction, parents before children."""
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
    """Return the text of a tree: for each direction its name and rates in bytes per second."""
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
    """Return whether both trees are equal but for the ceiling of the best-effort tier."""
    return _without_ceilings(one) == _without_ceilings(other)


def changed_limits(one: Tree, other: Tree) -> tuple[dict[int, int], dict[int, int]] | None:
    """Return the limits of *other* that differ from *one*, by class, for egress and ingress.

    ``None`` if the trees differ in more than limits and the ceiling of the best-effort tier.
    """
    if _without_ceilings(one, limits=False) != _without_ceilings(other, limits=False):
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


def _without_ceilings(tree: Tree, *, limits: bool = True) -> Tree:
    # Zeroes what can be changed in place: the tier's ceiling and, unless *limits*, the limits.
    def clear(shape: Shape) -> Shape:
        kept = shape.limits if limits else (0,) * len(shape.limits)
        return shape._replace(best_effort=(shape.best_effort[0], 0), limits=kept)

    return Tree(*(None if shape is None else clear(shape) for shape in tree))


def _encode_shape(shape: Shape) -> str:
    tiers = (shape.system, shape.latency_sensitive, shape.best_effort)
    pairs = (f"{guaranteed}-{ceiling}" for guaranteed, ceiling in tiers)
    return ",".join((str(shape.rate), *pairs, *map(str, shape.limits)))


def _decode_shape(text: str) -> Shape:
    rate, *rest = text.split(",")
    if len(rest) < 3:
        raise ValueError(f"{text!r} does not describe a direction")
    return Shape(
        int(rate), _pair(rest[0]), _pair(rest[1]), _pair(rest[2]), tuple(map(int, rest[3:]))
    )


def _pair(text: str) -> tuple[int, int]:
    guaranteed, _, ceiling = text.partition("-")
    return int(guaranteed), int(ceiling)


def shape_of(classes: Iterable[HtbClass]) -> Shape | None:
    """Return the direction that *classes* form; ``None`` if a class is missing."""
    by_minor = {c.minor: c for c in classes}
    system, sensitive, best_effort = CLASS_OF_TIER.values()
    needed = (LINK_CLASS, system, sensitive, TIER_CEILING, best_effort)
    if any(minor not in by_minor for minor in needed):
        return None
    tiers = [(c.rate, c.ceil) for c in (by_minor[m] for m in (system, sensitive, TIER_CEILING))]
    limits = tuple(by_minor[m].ceil for m in sorted(by_minor) if FIRST_LIMIT <= m < LINK_CLASS)
    return Shape(by_minor[LINK_CLASS].rate, tiers[0], tiers[1], tiers[2], limits)
