# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From the slowdown of services to evidence, claims and probes."""

from dataclasses import replace

import pytest

from controller.core.channels.channels import Channels
from controller.core.harm.harm_finder import HarmFinder
from controller.core.harm.harm_model import HarmModel
from controller.core.model import CgroupId
from controller.core.settings import MicroProbeLimits
from tests.sim.who import observe
from tests.support.loops.closed_loop import LAW, make_settings

JOB = CgroupId("cpu", 1)


def test_without_a_model_nothing_is_known_and_the_other_evidence_has_the_whole_weight() -> None:
    finder = HarmFinder()
    assert finder.share("web", 0.1) is None
    assert not finder.certain("web")
    (claim,) = finder.claims(0.7, {"web": 0.5}, {JOB: 3.0}, {JOB: 1.0})
    assert (claim.weight, claim.deeds) == (0.7, {JOB: 3.0})


@pytest.mark.parametrize("per_minute", [0.0, 3.0])
def test_without_a_rate_of_probes_none_is_made(per_minute: float) -> None:
    """The service suffers from the first second on, and memory traffic does not show from what."""
    law = replace(LAW, micro_probes=MicroProbeLimits(per_minute=per_minute))
    assert (observe("who-smt-8", 1, 4, law).limited > 0) is (per_minute > 0)


def test_a_law_without_the_part_forgets_what_was_found() -> None:
    settings = make_settings()
    channels = Channels(settings)
    channels._harm._models["web"] = HarmModel()
    channels.reconfigure(settings)
    assert channels._harm._models
    channels.reconfigure(replace(settings, law=replace(LAW, find_harm=False)))
    assert not channels._harm._models
