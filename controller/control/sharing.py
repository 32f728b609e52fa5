# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The culprit pays: how a total for all best-effort work becomes a quota for each workload."""

from collections.abc import Mapping
from typing import TypeVar

__all__ = ("share_out", "water_fill")

Key = TypeVar("Key")


def water_fill(
    cut: float, weights: Mapping[Key, float], room: Mapping[Key, float]
) -> dict[Key, float]:
    """Share *cut* in proportion to *weights*, nobody more than his *room*.

    What one cannot pay, the others pay in proportion. Weight zero pays nothing before the
    weighted have paid all they can; then the rest is shared in proportion to room.
    """
    paid = dict.fromkeys(room, 0.0)
    remaining = min(cut, sum(room.values()))
    for shares in (weights, room):
        # Each round either ends the cut or empties somebody, poorest (per weight) first.
        payers = sorted(
            (key for key in room if shares.get(key, 0.0) > 0 and room[key] > paid[key]),
            key=lambda key: (room[key] - paid[key]) / shares[key],
        )
        weight_left = sum(shares[key] for key in payers)
        for key in payers:
            if remaining <= 0:
                break
            due = min(room[key] - paid[key], remaining * shares[key] / weight_left)
            paid[key] += due
            remaining -= due
            weight_left -= shares[key]
            if weight_left <= 0:
                break
    return paid


def share_out(
    total: float,
    wants: Mapping[Key, float],
    least: Mapping[Key, float],
    blame: Mapping[Key, float],
) -> dict[Key, float]:
    """Return CPUs for each of *wants*, *total* together, the cut shared by *blame*.

    Nobody gets less than his *least*. A total above the wants is spread in proportion to them.
    """
    wanted = sum(wants.values())
    if wanted <= 0:
        return {}
    if total >= wanted:
        return {key: want * total / wanted for key, want in wants.items()}
    room = {key: max(0.0, want - least[key]) for key, want in wants.items()}
    paid = water_fill(wanted - total, blame, room)
    return {key: want - paid[key] for key, want in wants.items()}
