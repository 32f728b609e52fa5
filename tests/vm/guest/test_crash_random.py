# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Random runs on cgroup v2 and resctrl, beside another program that also creates groups."""

import contextlib
import errno
import subprocess

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
import pytest

from actuators.base import RestoreReport
from controller.core.model import Knob, Target, TargetKind
from controller.host.resctrl import RESCTRL_DIR
from tests.kernel.knobs import action
from tests.kernel.test_crash_random import CrashError, Lives, refusals, refusing, steps_to_live
from tests.vm.guest.resctrl import GROUP, OURS, groups

GROUP_TARGET = Target(TargetKind.RESCTRL_GROUP, str(RESCTRL_DIR), 0, GROUP)
SCHEMATA = {
    Knob.MBA: ("0=100", "0=15", "0=50", "0=5"),  # the second is rounded, the last refused
    Knob.LLC_WAYS: ("0=7ff", "0=3", "0=5"),
}
wanted = st.tuples(
    st.sampled_from(["absent", "present"]),
    st.sampled_from([None, *SCHEMATA[Knob.MBA]]),
    st.sampled_from([None, *SCHEMATA[Knob.LLC_WAYS]]),
)


class GuestLives(Lives):
    """``Lives`` with a control group of ours.

    ``foreign_inode`` is that of a group of the same name that another program created.
    """

    @initialize()
    def start(self) -> None:
        subprocess.run(["mount", "-t", "resctrl", "resctrl", RESCTRL_DIR], check=True)
        self.foreign_inode = 0
        super().start()

    @rule(wish=wanted, lives=steps_to_live, refusals=refusals)
    @precondition(lambda self: self.agent is not None)
    def group_tick(
        self, wish: tuple[str, str | None, str | None], lives: int | None, refusals: list[int]
    ) -> None:
        self.now_ns += 100_000_000_000
        self.steps_left = lives
        inode = OURS.stat().st_ino if OURS.exists() else None
        assert self.agent is not None
        group_wish, *values = wish
        actions = []
        if group_wish == "present" and inode is None:
            actions.append(action(GROUP_TARGET, Knob.RESCTRL_GROUP, "absent", "present"))
        elif group_wish == "absent" and inode is not None and inode != self.foreign_inode:
            actions.append(action(GROUP_TARGET, Knob.RESCTRL_GROUP, f"present {inode}", "absent"))
        elif inode is not None and inode != self.foreign_inode:
            group = GROUP_TARGET._replace(id=inode)
            seen = {reading.knob: reading.value for reading in self.agent.read([group])}
            actions += [
                action(group, knob, seen[knob], value)
                for knob, value in zip(SCHEMATA, values, strict=True)
                if value is not None
            ]
        try:
            with refusing(refusals):
                outcomes = self.agent.execute(actions, now_ns=self.now_ns)
        except CrashError:
            self.agent = None
            return
        for outcome in outcomes:
            now = {r.knob: r.value for r in self.agent.read([outcome.action.target])}
            assert outcome.applied == now.get(outcome.action.knob), outcome

    @rule()
    def others_take_the_name(self) -> None:
        if OURS.exists():
            OURS.rmdir()
        with contextlib.suppress(OSError):  # there may be no CLOSID left
            OURS.mkdir()
            self.foreign_inode = OURS.stat().st_ino

    @rule()
    def others_remove_it(self) -> None:
        if OURS.exists():
            OURS.rmdir()

    @rule(number=st.integers(0, 7))
    def others_have(self, number: int) -> None:
        there = {path.name for path in RESCTRL_DIR.glob("other*")}
        try:
            for n in range(7):
                if n < number and f"other{n}" not in there:
                    (RESCTRL_DIR / f"other{n}").mkdir()
                elif n >= number and f"other{n}" in there:
                    (RESCTRL_DIR / f"other{n}").rmdir()
        except OSError as error:
            assert error.errno == errno.ENOSPC

    def check(self, report: RestoreReport) -> None:
        super().check(report)
        assert not OURS.exists() or OURS.stat().st_ino == self.foreign_inode, report
        full = {text for name, text in groups().items() if name != GROUP}
        assert len(full) == 1, "a foreign group was changed"

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            subprocess.run(["umount", RESCTRL_DIR], check=True)


GuestLives.TestCase.settings = settings(
    max_examples=8,
    stateful_step_count=15,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestGuestLives = pytest.mark.vm(GuestLives.TestCase)
