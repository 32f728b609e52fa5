# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The forecasts, in the data directory and back."""

import logging
from pathlib import Path

import pytest

from controller.host.store import Store
from controller.kube.capacity import ForecastRecord
from controller.kube.forecast_store import ForecastStore
from tests.support.waiting import DEADLINE_S

RECORD = ForecastRecord(200, 100, 3, (((20, 3000), (21, 500)), *((),) * 167))
EMPTY: list[object] = [[]] * 168


def write(data: Path, content: object) -> None:
    store = Store(data)
    store.write("forecast", 1, content)
    store.close(DEADLINE_S)


def test_what_was_written_is_read_by_the_next_start(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    assert ForecastStore(store).read() == {}
    ForecastStore(store).write({"cpu": RECORD, "memory": ForecastRecord()})
    store.close(DEADLINE_S)
    found = ForecastStore(Store(tmp_path / "data")).read()
    assert found == {"cpu": RECORD, "memory": ForecastRecord()}


@pytest.mark.parametrize(
    "content",
    [
        5,
        [5],
        {"cpu": 5},
        {"cpu": [1, 1, 1, EMPTY[1:]]},
        {"cpu": [1, 1, 2, EMPTY]},
        {"cpu": [1, 1, "no number", EMPTY]},
        {"cpu": [10**400, 1, 1, EMPTY]},
        {"cpu": [1, 1, 1, [[[100, 5]], *EMPTY[1:]]]},
        {"cpu": [1, 1, 1, [[[5, -5]], *EMPTY[1:]]]},
        {"cpu": [1, 1, 1, [[[5, 0.5]], *EMPTY[1:]]]},
    ],
)
def test_a_file_of_another_form_is_one_warning_and_a_new_start(
    tmp_path: Path, content: object, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "data", content)
    with caplog.at_level(logging.WARNING):
        assert ForecastStore(Store(tmp_path / "data")).read() == {}
    (warning,) = caplog.messages
    assert "the forecast starts anew" in warning


@pytest.mark.parametrize("text", ["", "{", '{"version": 1}', "\0" * 100, "[" * 100_000])
def test_a_damaged_file_is_set_aside(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "data", {})
    (tmp_path / "data" / "forecast.json").write_text(text)
    assert ForecastStore(Store(tmp_path / "data")).read() == {}
    assert len(caplog.messages) == 1
    assert (tmp_path / "data" / "forecast.json.damaged").exists()


def test_the_largest_document_is_written(tmp_path: Path) -> None:
    most = ForecastRecord(1 << 53, 1 << 53, 1 << 53, (tuple((b, 7200) for b in range(100)),) * 168)
    assert most.is_sane
    store = Store(tmp_path / "data")
    ForecastStore(store).write({"cpu": most, "memory": most})
    store.close(DEADLINE_S)
    assert store.state.lost == {}
    assert (tmp_path / "data" / "forecast.json").stat().st_size < 500_000
    assert ForecastStore(Store(tmp_path / "data")).read()["cpu"] == most
