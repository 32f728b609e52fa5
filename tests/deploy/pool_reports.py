# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Answers of agents to ``sweetpoint trial --latest --json``, from made-up pairs."""

from collections.abc import Sequence
from typing import Any

from controller.cli.trial_background import Latest, State
from controller.cli.trial_result import document
from controller.host.trial_record import Record
from controller.trial.blocks import Design, Pair, Results
from tests.support.trial import bursty_pairs

__all__ = ("DESIGN", "LABEL", "lie", "report")

DESIGN = Design.of(7200.0, 120.0, 20.0, 0.5, 7)
LABEL = "LABEL"  # a fake kubectl puts that of a trial here which it began


def report(
    seed: int,
    suffering: float = 1.0,
    work: float = 1.0,
    *,
    pairs: Sequence[Pair] | None = None,
    state: State = State.ENDED,
    label: str = LABEL,
    configuration: str = "one",
    hurt: str = "",
    ended: str = "",
) -> dict[str, Any]:
    """Return what a node says, on which enforcing leaves these parts of suffering and work."""
    made = bursty_pairs(seed, DESIGN, suffering, work) if pairs is None else pairs
    record = Record(file="", label=label, configuration=configuration, ended=ended, hurt=hurt)
    found = Latest(state=state, record=record, results=Results(f"n{seed}", DESIGN, made))
    return document([found.results], ended, {"trial": found.plain()})


def lie(suffered: float, work: float) -> dict[str, Any]:
    """Return what a node says whose figures are as extreme as can be, and certain."""
    page = report(0)
    for finding in page["findings"]:
        middle = suffered if finding["kind"] == "time" else work
        finding["effect"] = [middle, middle, middle]
    return page
