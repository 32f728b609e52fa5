# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When the evidence gate lets a squeeze pass."""

from dataclasses import replace
from functools import partial

import pytest

from controller.core.decision import ChannelState
from controller.core.loop.evidence import Evidence, EvidenceGate


def evidence(
    share: float | None = 1.0,
    throttled: float | None = 0.0,
    steal: float | None = 0.0,
    host: float = 0.0,
) -> Evidence:
    return Evidence(
        be_share=share,
        throttled_ratio=throttled,
        inflicted_cpus=0.5,
        steal_cpus=steal,
        cpus=2,
        host_cpus=host,
    )


@pytest.mark.parametrize(
    ("hurting", "seen", "state"),
    [
        (True, evidence(), ChannelState.SQUEEZE),
        (True, evidence(share=0.1), ChannelState.NOT_BE),
        (True, evidence(share=None), ChannelState.NOT_BE),
        (True, evidence(throttled=0.1), ChannelState.SELF),
        (True, evidence(throttled=0.01), ChannelState.SQUEEZE),
        (True, replace(evidence(), at_own_limit=True), ChannelState.SELF),
        (False, replace(evidence(), at_own_limit=True), ChannelState.FREE),
        (True, evidence(throttled=None, steal=None), ChannelState.SQUEEZE),
        (True, evidence(steal=0.3), ChannelState.STEAL),
        (True, evidence(steal=0.05), ChannelState.SQUEEZE),
        (True, evidence(host=0.5), ChannelState.STEAL),
        (True, evidence(host=0.45), ChannelState.SQUEEZE),
        (False, evidence(share=0.0, throttled=0.1, steal=2.0), ChannelState.FREE),
    ],
)
def test_state_that_follows_from_the_evidence(
    hurting: bool, seen: Evidence, state: ChannelState
) -> None:
    assert EvidenceGate().update(hurting, lambda: seen, 0.2) is state


def test_half_the_share_that_starts_a_squeeze_keeps_it_up() -> None:
    gate = EvidenceGate()
    assert gate.update(True, lambda: evidence(share=0.15), 0.2) is ChannelState.NOT_BE
    assert gate.update(True, lambda: evidence(share=0.25), 0.2) is ChannelState.SQUEEZE
    assert gate.update(True, lambda: evidence(share=0.15), 0.2) is ChannelState.SQUEEZE
    assert gate.update(True, lambda: evidence(share=0.05), 0.2) is ChannelState.NOT_BE


def test_half_the_throttled_time_that_explains_a_wait_keeps_the_explanation_up() -> None:
    gate = EvidenceGate()
    states = [
        gate.update(True, partial(evidence, throttled=share), 0.2)
        for share in (0.04, 0.06, 0.04, 0.02)
    ]
    squeeze, own = ChannelState.SQUEEZE, ChannelState.SELF
    assert states == [squeeze, own, own, squeeze]


@pytest.mark.parametrize("seen", [evidence(host=0.6), evidence(steal=0.6)])
def test_a_host_that_explains_the_wait_makes_a_squeeze_vain(seen: Evidence) -> None:
    gate = EvidenceGate()
    assert gate.update(True, evidence, 0.2) is ChannelState.SQUEEZE
    assert not gate.in_vain
    assert gate.update(True, lambda: seen, 0.2) is ChannelState.SQUEEZE
    assert gate.in_vain
    gate.update(True, evidence, 0.2)
    assert not gate.in_vain
