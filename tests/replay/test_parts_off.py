# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings with and without parts of the control law that cannot be switched off any more.

``known_parts.jsonl.gz`` is a minute of two nodes, recorded when these parts were switches: 30 s of
``SimulatedNode`` without ``fast_rise``, a service and two best-effort workloads, and 30 s of
``MemoryNode``. All parts that have no switch any more were on. Its plans were changed twice: quotas
that were multiples of 25 us are 1 us larger, as ``quota_for`` has them; and 49 plans are those of a
squeeze that ends at once where a service has another cause.

``first_law.jsonl.gz`` is 52 seconds of ``SimulatedNode``, recorded before the law had parts: two
best-effort workloads beside a service that is throttled by its own quota for two seconds, suffers
until a workload is to be evicted, and recovers.
"""

from dataclasses import replace
import gzip
import json
from pathlib import Path

import pytest

from controller.agent.history.records import Line, decode, encode
from controller.agent.recording import Entry, Recorder, read, replay
from controller.cli.main import main
from controller.config.sections.law import REMOVED
from controller.core.planner import Planner
from controller.demo.simulated_node import SimulatedNode
from tests.support.loops.closed_loop import make_settings

KNOWN_PARTS = Path(__file__).with_name("known_parts.jsonl.gz")
FIRST_LAW = Path(__file__).with_name("first_law.jsonl.gz")


def test_a_recording_with_all_of_them_replays_to_equal_plans(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pairs = [(entry.plan, plan) for entry, plan in replay(read(KNOWN_PARTS))]
    assert sum(len(plan.actions) for plan, _ in pairs) == 123
    assert [replace(plan, verdicts=()) for plan, _ in pairs] == [
        replace(plan, verdicts=()) for _, plan in pairs
    ]
    assert main(["replay", str(KNOWN_PARTS)]) == 0
    shown = capsys.readouterr()
    assert shown.out.endswith("300 ticks, 0 plans differ from the recorded ones\n")
    assert not shown.err


def test_a_recording_from_before_the_law_had_parts_lacks_all_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replay", str(FIRST_LAW)]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1].startswith("260 ticks, ")
    (line,) = shown.err.splitlines()
    assert f"parts of the control law: {', '.join(REMOVED)}. They" in line


def without(*parts: str, path: Path) -> Path:
    """Write ``known_parts.jsonl.gz`` to *path* as if these parts had been off."""
    with gzip.open(KNOWN_PARTS, "rt") as lines, gzip.open(path, "wt") as changed:
        for line in lines:
            data = json.loads(line)
            if data["settings"] is not None:
                data["settings"]["law"] |= dict.fromkeys(parts, False)
                # Another plan, as another law makes it.
                data["plan"]["safe"] = True
            changed.write(json.dumps(data) + "\n")
    return path


def test_a_recording_without_one_says_which_and_that_plans_may_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(without("steady_grants", path=tmp_path / "r"))]) == 0
    shown = capsys.readouterr()
    assert shown.out.endswith("300 ticks, 2 plans differ from the recorded ones\n")
    (line,) = shown.err.splitlines()
    assert line.startswith("sweetpoint: recorded without these parts of the control law: steady_g")
    assert line.endswith("cannot be switched off any more, so plans may differ")


def test_a_recording_without_a_part_that_is_a_switch_must_not_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(without("spare_harmless", path=tmp_path / "r"))]) == 1
    assert not capsys.readouterr().err


def first_entry() -> Entry:
    node, settings = SimulatedNode(1), make_settings()
    snapshot = node.snapshot(0)
    plan = Planner(settings, node.workloads).step(snapshot, ())
    return Entry(snapshot=snapshot, outcomes=(), plan=plan, anew=True, settings=settings)


def test_new_recordings_and_histories_have_all_of_them(tmp_path: Path) -> None:
    with Recorder(tmp_path / "r") as recorder:
        recorder.write(first_entry())
    (entry,) = read(tmp_path / "r")
    history = encode(1, first_entry()).strip()
    (line,) = decode(iter([history]))
    assert isinstance(line, Line) and isinstance(line.record, Entry)
    for recorded, text in (
        (entry, gzip.decompress((tmp_path / "r").read_bytes())),
        (line.record, history.split(b":", 2)[2][:-1]),
    ):
        assert recorded.parts_off == ()
        assert recorded.settings == make_settings()
        # Versions of which these parts were switches take them from there.
        law = json.loads(text)["settings"]["law"]
        assert all(law[name] is True for name in REMOVED)


def test_a_history_from_before_the_law_had_parts_lacks_all_of_them() -> None:
    history = encode(1, first_entry()).strip()
    (line,) = decode(iter([history.replace(b'"law":', b'"was":')]))
    assert isinstance(line, Line) and isinstance(line.record, Entry)
    assert line.record.parts_off == tuple(REMOVED)
