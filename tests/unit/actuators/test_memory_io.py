# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Steps and comparison of memory.high, memory.max, io.weight and io.max."""

import errno
from pathlib import Path
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
import pytest

from actuators.base import RefusedError
from actuators.file_knob import CgroupKnob
from actuators.memory_io import IoMax, IoWeight, MemoryHigh, MemoryMax
from actuators.reading import ReadResult, read_knobs
from controller.core.decision import Action, Failure
from controller.core.model import Knob, KnobValue, Target, TargetKind

V2: Literal["v2"] = "v2"
MEMORY = MemoryHigh(Path("/nowhere"), V2, V2)
WEIGHT = IoWeight(Path("/nowhere"), V2, V2)
DISKS = IoMax(Path("/nowhere"), V2, V2)

limits = st.dictionaries(
    st.sampled_from(["8:0", "8:16", "253:1"]),
    st.dictionaries(
        st.sampled_from(["rbps", "wbps", "riops", "wiops"]), st.integers(1, 10**12), min_size=1
    ),
)


def io_max(value: dict[str, dict[str, int]]) -> KnobValue:
    # In the order of the dictionaries, so the text need not be canonical.
    lines = [
        " ".join((disk, *(f"{kind}={limit}" for kind, limit in kinds.items())))
        for disk, kinds in value.items()
    ]
    return KnobValue(";".join(lines) or "max")


@given(before=limits, after=limits)
def test_each_changed_disk_is_written_once_and_the_last_state_is_the_goal(
    before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]
) -> None:
    steps = DISKS.steps(io_max(before), io_max(after))
    changed = {d for d in before.keys() | after.keys() if before.get(d) != after.get(d)}
    assert sorted(step.text.split()[0] for step in steps) == sorted(changed)
    for step in steps:
        disk, *words = step.text.split()
        wanted = after.get(disk, {})
        assert dict(word.split("=") for word in words) == {
            kind: str(wanted.get(kind, "max")) for kind in ("rbps", "wbps", "riops", "wiops")
        }
    if steps:
        assert DISKS.steps(steps[-1].state, io_max(after)) == ()


def test_values_of_io_max_are_canonical() -> None:
    (step,) = DISKS.steps(KnobValue("max"), KnobValue("8:16 wiops=9 rbps=1"))
    assert step.state == "8:16 rbps=1 wiops=9"
    with pytest.raises(ValueError, match="not a value"):
        DISKS.steps(KnobValue("max"), KnobValue("8:16 speed=9"))


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("4096", "4096", True),
        ("8191", "4096", True),
        ("8191", "8192", False),
        ("max", "max", True),
        ("max", "4096", False),
        ("4096", "max", False),
    ],
)
def test_memory_high_is_rounded_down_to_pages(expected: str, found: str, same: bool) -> None:
    assert MEMORY.matches(KnobValue(expected), KnobValue(found)) is same


def memory_cgroup(mount: Path, limit_file: str, limit: str, used: int) -> Target:
    folder = mount / "batch"
    folder.mkdir()
    for name, text in (("cgroup.procs", ""), (limit_file, limit), ("memory.current", str(used))):
        (folder / name).write_text(f"{text}\n")
    return Target(TargetKind.CGROUP, mount.name, folder.stat().st_ino, "/batch")


def limit(target: Target, previous: str, value: str) -> Action:
    return Action(
        target=target,
        knob=Knob.MEMORY_MAX,
        previous=KnobValue(previous),
        value=KnobValue(value),
        reason="test",
    )


def test_no_limit_of_memory_is_the_same_text_on_v1_and_v2(tmp_path: Path) -> None:
    target = memory_cgroup(tmp_path, "memory.limit_in_bytes", "9223372036854771712", 0)
    knob = MemoryMax(tmp_path, tmp_path.name, "v1")
    assert knob.read(target) == "max"
    assert [step.text for step in knob.steps(KnobValue("max"), KnobValue("8192"))] == ["8192"]
    assert [step.text for step in knob.steps(KnobValue("8192"), KnobValue("max"))] == ["-1"]


def test_a_limit_below_the_use_is_not_written_on_v2(tmp_path: Path) -> None:
    target = memory_cgroup(tmp_path, "memory.max", "max", 5 * 8192)
    knob = MemoryMax(tmp_path, tmp_path.name, V2)
    refused = knob.apply(limit(target, "max", str(4 * 8192)))
    assert (refused.failure, refused.errno, refused.applied) == (
        Failure.REFUSED,
        errno.EBUSY,
        "max",
    )
    assert knob.apply(limit(target, "max", str(6 * 8192))).failure is None
    (tmp_path / "batch/memory.current").write_text(str(9 * 8192))
    raised = knob.apply(limit(target, str(6 * 8192), str(7 * 8192)))
    assert raised.failure is None, "a higher limit kills nothing"


def test_io_weight_is_written_as_the_default_weight() -> None:
    (step,) = WEIGHT.steps(KnobValue("100"), KnobValue("7"))
    assert (step.file, step.text, step.state) == ("io.weight", "default 7", "7")


def read(actuator: CgroupKnob, mount: Path, file: str, text: str) -> ReadResult:
    """Return what the agent reads in a cgroup with *text* in *file*."""
    path = mount / "job"
    path.mkdir()
    (path / "cgroup.procs").touch()
    (path / file).write_text(text)
    target = Target(TargetKind.CGROUP, V2, path.stat().st_ino, "/job")
    ((_, found),) = read_knobs([actuator], target)
    return found


def test_limits_of_a_removed_disk_are_left_out(tmp_path: Path) -> None:
    limits_of = "{} rbps=1000 wbps=max riops=max wiops=max\n"
    text = limits_of.format("8:0") + limits_of.format("(unknown)")
    assert read(IoMax(tmp_path, V2, V2), tmp_path, "io.max", text) == "8:0 rbps=1000"


@pytest.mark.parametrize(
    ("knob", "file", "text"),
    [
        (IoMax, "io.max", "8:0 rbps=many\n"),
        (IoWeight, "io.weight", "default heavy\n"),
        (MemoryHigh, "memory.high", "a lot\n"),
    ],
)
def test_a_text_that_is_no_value_is_a_refusal(
    knob: type[IoMax | IoWeight | MemoryHigh], file: str, text: str, tmp_path: Path
) -> None:
    assert isinstance(read(knob(tmp_path, V2, V2), tmp_path, file, text), RefusedError)
