# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which trials of nodes say something about a candidate, and why others are left out.

A trial of the agent against a paused one, or of another profile, says nothing about the candidate.
"""

from controller.rollout.spec import Proposal
from controller.rollout.summary import SummaryError, Trial, decode

__all__ = ("trial_of",)

# A policy that raises the mode: its trial compares enforcing with pausing.
_ENFORCE = ("mode=enforce",)


def trial_of(proposal: Proposal, text: str | None) -> Trial:
    """Return the trial of a node, with *text* in its annotation; without any: one without pairs.

    :raises SummaryError: the text is no summary, or the trial compared something else than the
        candidate and the profile that it replaces.
    """
    if not text:
        return Trial()
    trial = decode(text)
    names = proposal.names
    if proposal.sets == _ENFORCE:
        if trial.policy:
            raise SummaryError("the trial compared a policy: it needs enforcing and pausing")
        return trial
    if not trial.policy:
        raise SummaryError(
            "the trial compared enforcing with pausing: it needs --policy or --against"
        )
    if isinstance(names, str):
        if trial.replaces or tuple(sorted(trial.also)) != proposal.sets:
            raise SummaryError("the policy of the trial does not set what the candidate sets")
        return trial
    if trial.replaces != {names.replaces: names.candidate}:
        raise SummaryError("the policy of the trial does not replace this profile by the candidate")
    if trial.also:
        raise SummaryError("the policy of the trial sets other keys too")
    return trial
