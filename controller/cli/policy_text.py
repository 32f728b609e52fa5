# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which policies are in force, and why: lines of ``sweetpoint check``."""

from collections.abc import Iterator
from dataclasses import dataclass

from controller.cli.common import clock
from controller.config.policies import PoliciesInForce

__all__ = ("PoliciesSummary", "PolicySummary", "policy_lines", "summarize_policies")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySummary:
    """A policy, whether it is ``in_force`` (``None``: depends on labels), and why."""

    name: str
    in_force: bool | None
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoliciesSummary:
    """All policies of a file; ``next_change_s``: seconds since 1970, ``None``: not known.

    ``observes``: the mode is observe because the labels of the node are not known.
    """

    policies: tuple[PolicySummary, ...]
    next_change_s: float | None
    observes: bool


def summarize_policies(found: PoliciesInForce) -> PoliciesSummary:
    """Return what the configuration says about each policy."""
    because = {each.name: each.because for each in found.entries}
    return PoliciesSummary(
        policies=tuple(
            PolicySummary(
                name=name,
                in_force=None if name in found.undecided else name in because,
                because=because.get(name, ""),
            )
            for name in found.known
        ),
        next_change_s=found.next_change_s,
        observes=found.observes_until_known,
    )


def policy_lines(summary: PoliciesSummary) -> Iterator[str]:
    """Yield at most two lines; none without policies."""
    if not summary.policies:
        return
    parts = [f"{each.name} ({each.because})" for each in summary.policies if each.in_force]
    text = ", ".join(parts) or f"none of {len(summary.policies)}"
    then = summary.next_change_s
    change = "" if then is None else f"; next change {clock(then * 1e9)}"
    yield f"policies in force: {text}{change}"
    if undecided := [each.name for each in summary.policies if each.in_force is None]:
        mode = ", so the mode is observe" if summary.observes else ""
        yield f"node labels are not known{mode} (see --node-labels): {', '.join(undecided)}"
