# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Canonical text of resctrl's settings: one number per domain (a cache id).

resctrl.mb is "DOMAIN=VALUE;...", resctrl.l3 "DOMAIN=HEXMASK;...", sorted by domain.
"""

from collections.abc import Mapping

from controller.model import KnobValue

__all__ = ("format_bandwidth", "format_masks", "lowest_ways", "parse_bandwidth", "parse_masks")


def parse_bandwidth(value: KnobValue) -> dict[int, int]:
    """Return the MBA value of each domain.

    :raises ValueError: the text is not canonical.
    """
    return _parse(value, 10)


def parse_masks(value: KnobValue) -> dict[int, int]:
    """Return the mask of cache ways of each domain.

    :raises ValueError: the text is not canonical.
    """
    return _parse(value, 16)


def format_bandwidth(values: Mapping[int, int]) -> KnobValue:
    """Return the canonical text of MBA values."""
    return KnobValue(";".join(f"{domain}={values[domain]}" for domain in sorted(values)))


def format_masks(masks: Mapping[int, int]) -> KnobValue:
    """Return the canonical text of masks."""
    return KnobValue(";".join(f"{domain}={masks[domain]:x}" for domain in sorted(masks)))


def lowest_ways(mask: int, ways: int) -> int:
    """Return the lowest run of *ways* adjacent bits in *mask*; the mask itself if there is none.

    The low end, because on Intel's servers the devices' own writes go to the highest ways.
    """
    run = (1 << ways) - 1
    for shift in range(mask.bit_length()):
        if mask >> shift & run == run:
            return run << shift
    return mask


def _parse(value: KnobValue, base: int) -> dict[int, int]:
    numbers = {}
    for part in value.split(";"):
        domain, _, number = part.partition("=")
        numbers[int(domain)] = int(number, base)
    return numbers
