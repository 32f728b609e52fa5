# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Upgrade from and roll-back to version 0.1 with held knobs and a crash in between.

``journal_0_1`` has the records that version 0.1 wrote for the cgroup of ``pod`` when it set a quota
of 5 ms in 10 ms and cpu.idle. Where the history of the repository is at hand, the real version 0.1
runs as well, from the commit ``BASELINE``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import json
import os
from pathlib import Path
import random
import re
import signal
import subprocess
import time
import zlib

import pytest

from controller.agent.restore import release
from controller.host.facts import CgroupLayout, boot_id
from tests.kernel.guarded_run import Guarded, guarded
from tests.kernel.knobs import (
    dump,
    executor,
    make_limited,
    make_newer,
    squeeze_limited,
    target_of,
)

pytestmark = [pytest.mark.kernel, pytest.mark.apart]

BASELINE = "b65b4c1"
TREE = Path(__file__).parents[2]
FIXTURES = sorted((Path(__file__).parent / "journal_0_1").iterdir())


@pytest.fixture
def pod(cgroup_root: Path) -> Path:
    """A cgroup with the original values of the fixtures."""
    return make_limited(cgroup_root)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of version 0.1."""
    git = ["git", "-C", str(TREE)]
    known = subprocess.run([*git, "cat-file", "-e", BASELINE], capture_output=True, check=False)
    if known.returncode != 0:
        pytest.skip(f"no commit {BASELINE} here")
    tree = tmp_path_factory.mktemp("baseline")
    paths = ("actuators", "controller", "bpf", "tests/kernel")
    archive = subprocess.run([*git, "archive", BASELINE, *paths], capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    # Its limits are those of this program's tests then: a starved agent would look silent.
    program = tree / "tests" / "kernel" / "guarded.py"
    text, count = re.subn(r"(heartbeat_s|stop_s)=1\.0", r"\1=120.0", program.read_text())
    assert count == 2
    program.write_text(text)
    return tree


def fixture_records(layout: CgroupLayout, pod: Path) -> dict[str, bytes]:
    """Return the names and contents of the records of version 0.1, for *pod* and this boot."""
    target = target_of(layout, pod)
    found = {}
    for path in FIXTURES:
        fields = json.loads(path.read_text())
        del fields["crc"]
        name = f"{fields['knob']}.cgroup.{fields['scope']}.{fields['id']}"
        assert path.name == f"{name}.{zlib.crc32(fields['scope'].encode()):08x}.json"
        fields |= {"boot_id": boot_id(), "scope": target.scope, "id": target.id}
        fields["path"] = target.path
        fields["crc"] = zlib.crc32(json.dumps(fields, sort_keys=True).encode())
        name = f"{fields['knob']}.cgroup.{target.scope}.{target.id}"
        tag = zlib.crc32(target.scope.encode())
        found[f"{name}.{tag:08x}.json"] = json.dumps(fields).encode()
    return found


def squeeze(layout: CgroupLayout, pod: Path, state_dir: Path) -> None:
    """Write the values of the fixtures as an agent does."""
    target = target_of(layout, pod)
    outcomes = executor(layout, state_dir).execute(squeeze_limited(target), now_ns=0)
    assert [outcome.failure for outcome in outcomes] == [None, None]


def test_records_of_version_0_1_are_restored(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    before = dump(pod)
    squeeze(cgroup_layout, pod, tmp_path / "another")
    for name, data in fixture_records(cgroup_layout, pod).items():
        (tmp_path / "state" / "journal").mkdir(parents=True, exist_ok=True)
        (tmp_path / "state" / "journal" / name).write_bytes(data)
    assert dump(pod) != before
    assert release(tmp_path / "state") == 0
    assert dump(pod) == before
    assert not list((tmp_path / "state" / "journal").iterdir())


def test_records_can_be_restored_by_version_0_1(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path
) -> None:
    squeeze(cgroup_layout, pod, tmp_path)
    found = {path.name: path.read_bytes() for path in (tmp_path / "journal").iterdir()}
    assert found == fixture_records(cgroup_layout, pod)


@contextmanager
def run(tree: Path, state_dir: Path, pod: Path, then: str = "live") -> Iterator[Guarded]:
    """Run the program ``guarded`` of a tree."""
    before = Path.cwd()
    os.chdir(tree)
    try:
        with guarded(state_dir, pod, then) as program:
            yield program
    finally:
        os.chdir(before)


def crash(program: Guarded, numbers: random.Random | None = None) -> None:
    """Kill agent and guardian; with *numbers*, the agent possibly while it restores."""
    agent = program.squeezed()
    if numbers is not None and numbers.random() < 0.5:
        os.kill(agent, signal.SIGTERM)
        time.sleep(numbers.uniform(0, 0.05))
    program.kill_all()


@pytest.mark.thorough
@pytest.mark.parametrize("upgrades_first", [True, False])
def test_upgrade_and_roll_back_after_crashes(
    baseline: Path, pod: Path, tmp_path: Path, *, upgrades_first: bool
) -> None:
    before = dump(pod)
    seed = random.randrange(1 << 32)
    numbers = random.Random(seed)
    trees = (baseline, TREE) if upgrades_first else (TREE, baseline)
    for _ in range(2):
        for tree in trees:
            with run(tree, tmp_path, pod) as program:
                crash(program, numbers)
    for tree in trees:
        with run(tree, tmp_path, pod) as program:
            program.squeezed()
            code, log = program.stop()
        assert code == 0, (seed, log)
        assert dump(pod) == before, (seed, log)
    assert not list((tmp_path / "journal").iterdir()), seed


@pytest.mark.thorough
def test_roll_back_over_a_newer_format_loses_no_record(
    baseline: Path, pod: Path, tmp_path: Path
) -> None:
    before = dump(pod)
    with run(TREE, tmp_path, pod) as program:
        crash(program)
    # Version 0.1 takes the value that it finds for the original, but the record survives it.
    ((data, newer),) = [
        (path.read_bytes(), path)
        for path in (
            make_newer(record) for record in (tmp_path / "journal").glob("cpu.quota.*.json")
        )
    ]
    for tree in (TREE, baseline, TREE):
        with run(tree, tmp_path, pod, "nothing" if tree is TREE else "live") as program:
            if tree is not TREE:
                program.squeezed()
                program.process.terminate()
            code, log = program.end()
        assert code == 1
        assert re.search(rf"{newer}.*newer version", log)
        assert newer.read_bytes() == data
        now = dump(pod)
        assert {path for path in now if now[path] != before[path]} <= {
            *("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us"),
            *("cpu.max", "cpu.max.burst"),
        }
        assert now != before
    make_newer(newer, undo=True)  # the newer version is back
    assert release(tmp_path) == 0
    assert dump(pod) == before
