# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Mutated files, API objects and messages are used, or refused in the documented way."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
import re
import tempfile

import pytest

from controller.config.load import load
from controller.workloads.pods.descriptor import parse_descriptor
from controller.workloads.pods.pod import parse_pod
from tests.support.hostile.subjects import SUBJECTS
from tests.support.hostile.subjects.files import CONFIG, PROFILE
from tests.support.hostile.subjects.objects import DESCRIPTOR, POD
from tests.support.hostile.subjects.subject import Check


def check_mutations(subject: str, numbers: range, check: Check) -> None:
    """Check the mutations with *numbers*; the number of one that fails is in the notes."""
    for number in numbers:
        random = Random(f"{subject} {number}")
        raw = SUBJECTS[subject].mutate(random, random.choice(SUBJECTS[subject].examples))
        try:
            check(raw)
        except BaseException as error:
            error.add_note(f"mutation {number} of {subject}: {raw!r}")
            raise


def test_what_is_mutated_is_valid(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(PROFILE)
    (tmp_path / "config.yaml").write_bytes(CONFIG)
    assert load(tmp_path / "config.yaml", cpus=4).kubernetes
    assert parse_pod(POD).mirror
    assert len(parse_descriptor(DESCRIPTOR).points) == 2


@pytest.mark.parametrize("subject", SUBJECTS)
def test_an_example_is_accepted(subject: str, tmp_path: Path) -> None:
    with SUBJECTS[subject].open(tmp_path) as check:
        for raw in SUBJECTS[subject].examples:
            check(raw)


@pytest.mark.parametrize("part", ["first", pytest.param("more", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_mutation_is_used_or_refused(
    subject: str, part: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    last = {"push": 10_000, "page": 10_000, "request": 3000}.get(subject, 1500)
    first = last // 5
    with SUBJECTS[subject].open(tmp_path) as check:
        check_mutations(subject, range(first) if part == "first" else range(first, last), check)
    assert "Traceback" not in capfd.readouterr().err


def growth_bytes(subject: str) -> int:
    """Return how much the peak memory of a process grows after the first 1000 mutations."""
    with (
        tempfile.TemporaryDirectory(prefix="sweetpoint-") as home,
        SUBJECTS[subject].open(Path(home)) as check,
    ):
        check_mutations(subject, range(1000), check)
        before = peak_bytes()
        check_mutations(subject, range(1000, 11_000), check)
        return peak_bytes() - before


def peak_bytes() -> int:
    match = re.search(r"^VmHWM:\s+([0-9]+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert match
    return 1024 * int(match[1])


@pytest.mark.soak
@pytest.mark.parametrize("subject", SUBJECTS)
def test_mutations_do_not_fill_the_memory(subject: str) -> None:
    # In a process of its own: memory that earlier tests freed would hide the growth.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        grown = pool.submit(growth_bytes, subject).result()
    print(f"{subject}: {grown / 2**20:.1f} MiB more after 10000 mutations")
    assert grown <= 16 << 20
