# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Publishes the pairs of a trial in an annotation of the Node, from which a rollout reads them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from controller.config.load import load
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.node import Json, annotation, change_node
from controller.rollout.summary import TRIAL_KEY, SummaryError, Trial, decode, encode
from controller.trial.blocks import Pair, TrialError
from controller.trial.comparison import Comparison

__all__ = ("Publisher",)


class Publisher:
    """Publishes at the Node *node* with the credentials that the configuration *config* names.

    :param policy: what the trial compares; empty: enforcing with pausing.
    :raises ConfigError: the configuration is invalid.
    :raises TrialError: it has no section ``kubernetes``.
    """

    def __init__(self, config: Path, node: str, policy: str) -> None:
        found = load(config)
        if found.kubernetes is None:
            raise TrialError("--publish needs a section kubernetes in the configuration")
        self._api, self._node, self._policy = Api(found.kubernetes.kubeconfig), node, policy

    def publish(
        self, pairs: Sequence[Pair], compared: Comparison, hurt_s: float | None = None
    ) -> str:
        """Write the summary of *pairs*; return why that failed, empty if it did not.

        Harm that a trial of the same has published stays.

        :param compared: what the policy does.
        :param hurt_s: when the block began in which the policy hurt a service so much that the
            trial ended.
        """
        trial = Trial(
            pairs=pairs,
            policy=self._policy,
            replaces=compared.replaces,
            also=compared.also,
            hurt_s=hurt_s,
        )
        try:
            found = change_node(self._api, self._node, lambda node: _patch(node, trial))
        except (ApiError, ApiUnreachable) as error:
            return str(error)
        return "" if found else f"there is no Node {self._node!r}"


def _patch(node: Json, trial: Trial) -> Json:
    """Return the patch of *node* that publishes *trial*.

    The harm of an earlier trial stays: a rollout may not have read it yet, and with pairs of other
    blocks the candidate would look as if it had not hurt.
    """
    try:
        before = decode(annotation(node, TRIAL_KEY) or "")
    except SummaryError:
        before = Trial()
    if before.hurt_s is not None and _what(before) == _what(trial):
        trial = replace(trial, hurt_s=max(before.hurt_s, trial.hurt_s or 0.0))
    return {"metadata": {"annotations": {TRIAL_KEY: encode(trial)}}}


def _what(trial: Trial) -> tuple[object, ...]:
    """Return what *trial* compares; the name of a policy says nothing about that."""
    return bool(trial.policy), trial.replaces, trial.also
