# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings in which sweet points are learned."""

from dataclasses import replace
from pathlib import Path

from controller.agent.recording import Entry, Recorder, read, replay
from controller.core.planner import Planner
from controller.demo.simulated_node import SimulatedNode
from tests.support.loops.closed_loop import TICK_NS, make_settings

SECONDS = 180


def test_a_replay_learns_the_same_and_starts_from_what_was_learned_before(tmp_path: Path) -> None:
    settings = make_settings()
    profile = settings.profiles["default"]
    specs = tuple(replace(spec, learn=True) for spec in profile.indicators)
    settings = replace(settings, profiles={"default": replace(profile, indicators=specs)})
    node = SimulatedNode(3, wants=(0.0,))
    path = tmp_path / "recording"
    planner = Planner(settings, node.workloads)
    learned: tuple[object, ...] = ()
    with Recorder(path) as recorder:
        for tick in range(SECONDS * 5):
            anew = tick in (0, 700)
            if anew:
                learned = planner.learned
                planner = Planner(settings, node.workloads, None, planner.learned)
            snapshot = node.snapshot(tick * TICK_NS)
            plan = planner.step(snapshot, ())
            recorder.write(
                Entry(
                    snapshot=snapshot,
                    outcomes=(),
                    plan=plan,
                    anew=anew,
                    learned=learned if anew else (),  # type: ignore[arg-type]
                    settings=settings if anew else None,
                    workloads=node.workloads if anew else None,
                )
            )
            learned = ()
    assert plan.learned and plan.learned[0].is_sure
    assert plan.loops[0].sweet_point != specs[0].sweet_point
    entries = list(replay(read(path)))
    assert len(entries) == SECONDS * 5
    assert all(entry.plan == again for entry, again in entries)
