# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint learn``: wrong use. What it learns is tested on the running kernel."""

from pathlib import Path

import pytest

from controller.cli.main import main


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(
        "workloads:\n"
        "  - {name: web, cgroup: /web, class: latency-sensitive}\n"
        "  - {name: batch, cgroup: /batch, class: best-effort}\n"
    )
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--for", "10", "web"], "'10' is not a duration such as"),
        (["web", "db"], "no service of the configuration: db (have: web)"),
        (["batch"], "no service of the configuration: batch (have: web)"),
        (["--write", "{home}/config.yaml", "web"], "config.yaml exists"),
        (["--write", "{home}/none/new.yaml", "web"], "none is no directory"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    arguments: list[str], message: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [each.replace("{home}", str(config.parent)) for each in arguments]
    assert main(["learn", "--config", str(config), *given]) == 2
    assert message in capsys.readouterr().err


def test_one_file_takes_one_service(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.open("a") as file:
        file.write("  - {name: db, cgroup: /db, class: latency-sensitive}\n")
    written = tmp_path / "new.yaml"
    assert main(["learn", "--config", str(config), "--write", str(written), "web", "db"]) == 2
    assert "--write takes one service" in capsys.readouterr().err
    assert not written.exists()


def test_without_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "--config", str(tmp_path / "none.yaml"), "web"]) == 2
    assert "none.yaml" in capsys.readouterr().err
