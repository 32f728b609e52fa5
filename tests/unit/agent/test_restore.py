# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The output of ``sweetpoint release``."""

from actuators.base import Restored, RestoreReport, RestoreResult
from controller.agent.restore import describe


def test_odd_names_are_shown_as_text() -> None:
    name = "/batch/ \x1b[2J\udcff\u202e\x85job"
    result = RestoreResult(
        subject=f"{name} cpu.quota", result=Restored.GONE, message=f"no cgroup {name}"
    )
    (line,) = describe(RestoreReport(results=(result,)))
    shown = r"/batch/ \x1b[2J\udcff\u202e\x85job"
    assert line == f"gone      {shown} cpu.quota: no cgroup {shown}"
    line.encode()  # as print does it


def test_without_records_there_is_nothing_to_restore() -> None:
    assert [*describe(RestoreReport())] == ["nothing to restore"]
