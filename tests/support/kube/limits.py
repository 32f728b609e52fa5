# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Time limits of requests that a busy machine does not reach."""

from controller.kube.client.api import Limits
from tests.support.waiting import DEADLINE_S

__all__ = ("PATIENT",)

PATIENT = Limits(
    connect_s=DEADLINE_S, answer_s=DEADLINE_S, list_s=DEADLINE_S, silence_s=DEADLINE_S, gather_s=0
)
