# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Random runs of the executor on real cgroups, beside another program that writes the knobs.

Cgroups are made and removed, foreign values are written to the same knobs, the kernel refuses
writes (simulated by a wrapper of the system call), and the process dies at random steps (here by
an exception that nothing catches; test_crash uses SIGKILL). In every case a restore leaves each
knob at the last foreign value.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import errno
import itertools
import os
from pathlib import Path
import tempfile
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
import pytest

from actuators.base import Restored, RestoreReport
from actuators.executor import Executor
from actuators.journal import Journal
from controller.core.model import Knob, KnobValue
from controller.host.facts import find_cgroup_layout
from tests.kernel.knobs import (
    action,
    every_actuator,
    make_child,
    set_weight,
    target_of,
)
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

PATHS = ("p", "p/x", "p/y", "q")
QUOTAS = (
    "max 100000 0",
    "1000 10000 0",
    "5000 10000 0",
    "10000 20000 0",
    "9000 10000 3000",
    "40000 100000 40000",
    "999 50000 0",  # refused
)
WEIGHTS = ("1", "0 512", "0 100")
VALUES = {Knob.CPU_QUOTA: QUOTAS, Knob.SCHED_IDLE: WEIGHTS}
MIB = 1 << 20
CONTROL = Path("/sys/fs/cgroup/cgroup.subtree_control")
if CONTROL.exists():  # cgroup v2 has the others
    VALUES[Knob.MEMORY_HIGH] = ("max", str(64 * MIB), str(128 * MIB))
    VALUES[Knob.MEMORY_MAX] = ("max", str(96 * MIB), str(160 * MIB))
    VALUES[Knob.IO_WEIGHT] = ("100", "1", "20000")  # the last is refused
if CONTROL.exists() and "cpuset" in CONTROL.read_text().split():
    # Without CPU 0, which all sets of the other program have.
    VALUES[Knob.CPUSET] = ("all", "1", "1-3", "2,9999")  # the last is refused
FOREIGN_SETS = ("0", "0-1", "0,2", "0-2", "0,3", "0-1,3", "0,2-3")

wishes = st.lists(
    st.tuples(
        st.sampled_from(PATHS),
        st.sampled_from([(knob, value) for knob, values in VALUES.items() for value in values]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda wish: (wish[0], wish[1][0]),
)
steps_to_live = st.one_of(st.none(), st.integers(0, 60))
# Errors of the next writes to the kernel; 0: the write goes to the kernel.
refusals = st.lists(st.sampled_from([0, 0, errno.EBUSY, errno.EINVAL, errno.ENOSPC]), max_size=6)
numbers = itertools.count()


class CrashError(BaseException):
    """The simulated death of the process."""


class Lives(RuleBasedStateMachine):
    """One run; ``base`` is the last foreign value of each knob, which a restore must leave."""

    @initialize()
    def start(self) -> None:
        self.layout = find_cgroup_layout()
        self.root = self.layout.mount / f"sweetpoint-test-{os.getpid()}-lives-{next(numbers)}"
        self.scratch = tempfile.TemporaryDirectory()
        self.state_dir = Path(self.scratch.name)
        self.base: dict[tuple[str, Knob], KnobValue] = {}
        self.now_ns = 0
        self.foreign_numbers = itertools.count(1)
        make_child(self.root.parent, self.root.name)
        self.reader = {knob.knob: knob for knob in every_actuator(self.layout, self.state_dir)}
        self.agent: Executor | None = None
        for path in PATHS:
            self.create(path)
        self.restart(None, [])

    @rule(wishes=wishes, lives=steps_to_live, refusals=refusals)
    @precondition(lambda self: self.agent is not None)
    def tick(
        self,
        wishes: list[tuple[str, tuple[Knob, str], bool]],
        lives: int | None,
        refusals: list[int],
    ) -> None:
        actions = []
        for path, (knob, value), stale in wishes:
            if (self.root / path).exists():
                target = target_of(self.layout, self.root / path)
                seen = VALUES[knob][0] if stale else self.value(path, knob)
                actions.append(action(target, knob, seen, value))
        self.now_ns += 100_000_000_000
        self.steps_left = lives
        assert self.agent is not None
        try:
            with refusing(refusals):
                outcomes = self.agent.execute(actions, now_ns=self.now_ns)
        except CrashError:
            self.agent = None
            return
        for outcome in outcomes:
            path = str(Path(outcome.action.target.path).relative_to(f"/{self.root.name}"))
            assert outcome.applied == self.value(path, outcome.action.knob)
            if outcome.failure is None and outcome.foreign is None:
                assert outcome.applied == outcome.action.value

    @rule(lives=steps_to_live, refusals=refusals)
    def restart(self, lives: int | None, refusals: list[int]) -> None:
        self.steps_left = lives
        try:
            journal = Journal(self.state_dir / "journal", self.trace)
            self.agent = Executor(journal, every_actuator(self.layout, self.state_dir), self.trace)
            with refusing(refusals):
                report = self.agent.restore_all()
            if self.unexplained(report):
                # A removed cgroup may count against a quota until the kernel has freed it.
                report = eventually("a restore", self.restore_again)
        except CrashError:
            self.agent = None
        else:
            self.check(report)

    @rule(path=st.sampled_from(PATHS), knob=st.sampled_from(list(VALUES)))
    def write_foreign_value(self, path: str, knob: Knob) -> None:
        cgroup = self.root / path
        if not cgroup.exists():
            return
        number = next(self.foreign_numbers)
        if knob is Knob.SCHED_IDLE and self.value(path, knob) == "1":
            return  # the weight of an idle cgroup cannot be written
        try:
            if knob is Knob.SCHED_IDLE:
                set_weight(cgroup, 3000 + number)
            elif knob in (Knob.MEMORY_HIGH, Knob.MEMORY_MAX):
                (cgroup / knob).write_text(str((300 + number) * MIB))
            elif knob is Knob.IO_WEIGHT:
                (cgroup / "io.weight").write_text(str(200 + number))
            elif knob is Knob.CPUSET:
                (cgroup / "cpuset.cpus").write_text(FOREIGN_SETS[number % len(FOREIGN_SETS)])
            elif self.layout.version == "v1":
                (cgroup / "cpu.cfs_quota_us").write_text(str(7000 + number))
            else:
                (cgroup / "cpu.max").write_text(str(7000 + number))
        except OSError:
            return  # more than the parent has, or less than a child
        self.base[path, knob] = self.value(path, knob)

    @rule(path=st.sampled_from(PATHS))
    def vanish(self, path: str) -> None:
        if (self.root / path).exists() and not any((self.root / path).glob("*/")):
            (self.root / path).rmdir()

    @rule(path=st.sampled_from(PATHS))
    def create(self, path: str) -> None:
        cgroup = self.root / path
        if cgroup.parent.exists() and not cgroup.exists():
            make_child(cgroup.parent, cgroup.name)
            for knob in VALUES:
                self.base[path, knob] = self.value(path, knob)

    def teardown(self) -> None:
        try:
            self.restart(None, [])
        finally:
            self.scratch.cleanup()
            remove_cgroup(self.root)

    def value(self, path: str, knob: Knob) -> KnobValue:
        return self.reader[knob].read(target_of(self.layout, self.root / path))

    def trace(self, _step: str) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                raise CrashError
            self.steps_left -= 1

    def restore_again(self) -> RestoreReport | None:
        assert self.agent is not None
        report = self.agent.restore_all()
        return None if self.unexplained(report) else report

    def failed(self, report: RestoreReport) -> set[tuple[str, Knob]]:
        subjects = {r.subject for r in report.results if r.result is Restored.FAILED}
        return {
            (path, knob)
            for path, knob in self.base
            if f"/{self.root.name}/{path} {knob}" in subjects and (self.root / path).exists()
        }

    def unexplained(self, report: RestoreReport) -> bool:
        """Whether a restore failed though the kernel allows the old value."""
        return not all(
            knob is Knob.CPU_QUOTA and self.forbidden(path, self.base[path, knob])
            for path, knob in self.failed(report)
        )

    def check(self, report: RestoreReport) -> None:
        failed = self.failed(report)
        for (path, knob), base in self.base.items():
            if (path, knob) not in failed and (self.root / path).exists():
                assert self.value(path, knob) == base, (path, knob, report)
        if all(each.result is not Restored.FAILED for each in report.results):
            assert not list((self.state_dir / "journal").iterdir())

    def forbidden(self, path: str, base: KnobValue) -> bool:
        # A foreign write gave the parent a lower quota, or a child a higher one, so that the kernel
        # refuses the old value on v1.
        if self.layout.version == "v2":
            return False
        others = [p for p in PATHS if p != path and (self.root / p).exists()]
        above = [self.ratio(p) for p in others if path.startswith(p + "/")]
        below = [self.ratio(p) for p in others if p.startswith(path + "/")]
        mine = ratio_of(base)
        return mine is not None and (
            any(r is not None and mine > r for r in above)
            or any(r is not None and mine < r for r in below)
        )

    def ratio(self, path: str) -> float | None:
        return ratio_of(self.value(path, Knob.CPU_QUOTA))


@contextmanager
def refusing(errors: list[int]) -> Iterator[None]:
    """Make the next writes to the kernel fail with *errors*, one after the other."""
    write, left = os.write, iter(errors)

    def write_or_fail(fd: int, data: bytes) -> int:
        if error := next(left, 0):
            raise OSError(error, os.strerror(error))
        return write(fd, data)

    with patch.object(os, "write", write_or_fail):
        yield


def ratio_of(value: KnobValue) -> float | None:
    quota, period, _ = value.split()
    return None if quota == "max" else int(quota) / int(period)


Lives.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLives = pytest.mark.kernel(pytest.mark.thorough(Lives.TestCase))
