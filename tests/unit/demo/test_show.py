# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where the demonstration puts its report."""

from pathlib import Path

import pytest

from controller.cli.main import main

DEMO = ["demo", "--simulate", "--be", "stress-ng", "--seconds", "2"]


@pytest.mark.parametrize("named", [True, False])
def test_a_report_replaces_a_file_only_if_the_user_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("controller.demo.show.time.strftime", lambda _: "report.html")
    (tmp_path / "reports").mkdir()
    (tmp_path / "precious").write_text("of root")
    # As another user would place it in a directory of their own.
    (tmp_path / "reports" / "report.html").symlink_to(tmp_path / "precious")
    assert main([*DEMO, *(["--report", "reports/report.html"] if named else [])]) == 0
    assert ((tmp_path / "precious").read_text() != "of root") is named
