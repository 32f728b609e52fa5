# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``trial:`` of trials that the agent begins by itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from controller.config.fields import RATIO, RATIO_OF_LIMIT, Strict, duration, raw_default
from controller.config.sections.policies import POLICY
from controller.config.yaml_document import Document
from controller.core.units import NS_PER_SEC

__all__ = ("FEWEST_PAIRS", "TrialConfig", "TrialModel", "build_trial", "design_problems")

FEWEST_PAIRS = 3


class TrialModel(Strict):
    """Trials that the agent begins by itself, one after the other, while it enforces."""

    enabled: bool = False
    """Whether trials begin by themselves; a policy may set it for some nodes and hours."""
    policy: Annotated[str, Field(pattern=POLICY)] | None = None
    """Policy that is tried where it is in force; without a name enforcing is compared with
    pausing."""
    total: Annotated[int, duration("1s", "720h")] = Field("24h", alias="for")  # type: ignore[assignment]
    """How long one trial takes; the next one follows."""
    block: Annotated[int, duration("1s", "2h")] = raw_default("2m")
    """Length of a block that is paused or without the policy."""
    washout: Annotated[int, duration("0s", "1h")] = raw_default("20s")
    """Time at the begin of each block that is not measured."""
    paused: Annotated[float, RATIO_OF_LIMIT] = raw_default("50%")
    """Part of the time that is paused or without the policy, at most 50%."""
    most_harm: Annotated[float, RATIO] = raw_default("50%")
    """Part of a block by which a service may suffer longer than in the other arm before the trial
    ends."""
    publish: bool = False
    """Whether the last pairs are written into an annotation of the Node, for a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConfig:
    """The checked section; ``policy`` is empty if enforcing is compared with pausing."""

    enabled: bool = False
    policy: str = ""
    total_ns: int = 86_400 * NS_PER_SEC
    block_ns: int = 120 * NS_PER_SEC
    washout_ns: int = 20 * NS_PER_SEC
    paused_ratio: float = 0.5
    most_harm_ratio: float = 0.5
    publish: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """The options of ``sweetpoint trial`` that say the same."""
        found = ["--for", f"{self.total_ns}ns", "--block", f"{self.block_ns}ns"]
        found += ["--washout", f"{self.washout_ns}ns", "--paused", f"{self.paused_ratio:.12f}"]
        found += ["--most-harm", f"{self.most_harm_ratio:.12f}"]
        found += ["--policy", self.policy] if self.policy else []
        found += ["--publish"] if self.publish else []
        return tuple(found)


def design_problems(
    total_s: float, block_s: float, washout_s: float, paused_ratio: float
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the lengths of a trial: the key or option, and a text about it."""
    if not 0 < paused_ratio <= 0.5:
        yield "paused", "must be above 0% and at most 50%"
        return
    if block_s < 2 * washout_s:
        yield "block", "must be at least twice as long as washout"
    pair_s = block_s / paused_ratio
    if total_s < FEWEST_PAIRS * pair_s:
        yield (
            "for",
            f"has no room for {FEWEST_PAIRS} pairs of {pair_s:g} s: block is too long for it",
        )


def build_trial(
    document: Document,
    model: TrialModel,
    policies: Mapping[str, Mapping[str, Any]],
    problems: list[str],
    *,
    has_pods: bool,
    has_pages: bool,
) -> TrialConfig:
    """Return the checked section; what is wrong in it is added to *problems*.

    *policies* has what each policy sets, by its name. *has_pods*: the file has a section
    ``kubernetes``. *has_pages*: ``http`` is not off.
    """
    found = TrialConfig(
        enabled=model.enabled,
        policy=model.policy or "",
        total_ns=model.total,
        block_ns=model.block,
        washout_ns=model.washout,
        paused_ratio=model.paused,
        most_harm_ratio=model.most_harm,
        publish=model.publish,
    )
    problems += [document.problem(("trial", key), text) for key, text in _problems(found, policies)]
    if found.enabled and not has_pages:
        text = "a trial reads the pages of the agent, and http is off"
        problems.append(document.problem(("trial", "enabled"), text))
    if found.publish and not has_pods:
        text = "has no effect: the file has no section kubernetes"
        problems.append(document.problem(("trial", "publish"), text))
    return found


def _problems(
    found: TrialConfig, policies: Mapping[str, Mapping[str, Any]]
) -> Sequence[tuple[str, str]]:
    total_s, block_s, washout_s = (
        each / NS_PER_SEC for each in (found.total_ns, found.block_ns, found.washout_ns)
    )
    problems = [*design_problems(total_s, block_s, washout_s, found.paused_ratio)]
    if found.policy and found.policy not in policies:
        problems.append(("policy", f"there is no policy {found.policy!r}"))
    elif {"trial", "mode"} & policies.get(found.policy, {}).keys():
        problems.append(("policy", "a policy that sets trial or mode cannot be tried"))
    return problems
