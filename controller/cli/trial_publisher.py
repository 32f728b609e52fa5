# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Publishes the pairs of a trial in an annotation of the Node, from which a rollout reads them."""

from collections.abc import Sequence
from pathlib import Path

from controller.config.load import load
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.node import change_node
from controller.rollout.summary import TRIAL_KEY, encode
from controller.trial.blocks import Pair, TrialError

__all__ = ("Publisher",)


class Publisher:
    """Publishes at the Node *node* with the credentials that the configuration *config* names.

    :raises ConfigError: the configuration is invalid.
    :raises TrialError: it has no section ``kubernetes``.
    """

    def __init__(self, config: Path, node: str) -> None:
        kubernetes = load(config).kubernetes
        if kubernetes is None:
            raise TrialError("--publish needs a section kubernetes in the configuration")
        self._api, self._node = Api(kubernetes.kubeconfig), node

    def publish(self, pairs: Sequence[Pair]) -> str:
        """Write the summary of *pairs*; return why that failed, empty if it did not."""
        annotations = {TRIAL_KEY: encode(pairs)}
        try:
            found = change_node(
                self._api, self._node, lambda _: {"metadata": {"annotations": annotations}}
            )
        except (ApiError, ApiUnreachable) as error:
            return str(error)
        return "" if found else f"there is no Node {self._node!r}"
