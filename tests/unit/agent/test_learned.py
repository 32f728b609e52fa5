# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What was learned, in the data directory and back."""

import json
import logging
from pathlib import Path

import pytest

from controller.agent.learned import LearnedStore
from controller.core.learning.state import LearnedIndicator, State
from controller.core.model import IndicatorName
from controller.core.units import NS_PER_SEC
from controller.host.store import Store
from tests.support.waiting import DEADLINE_S

NAME = IndicatorName.RUNQ_P99


def learned(service: str, windows: int = 100) -> LearnedIndicator:
    state = State("cpu", "image", 2.0)
    for number in range(windows):
        state.add(1e6 + 1e5 * (number % 7), 0.5, 5e4, NS_PER_SEC)
    return state.record(service, NAME)


def reopened(path: Path) -> LearnedStore:
    return LearnedStore(Store(path))


def test_what_was_written_is_read_by_the_next_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = Store(data)
    first = LearnedStore(store)
    assert first.first == ()
    records = (learned("web"), learned("db"))
    first.write(records)
    store.close(DEADLINE_S)
    assert reopened(data).first == records
    assert (data / "sweet_points.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [5, [5], [["web", "no indicator", "", "", 2.0]], [{"service": 5}], {"a": 1}, [[None] * 8]],
)
def test_a_file_of_another_form_is_reported_and_nothing_is_known(
    tmp_path: Path, content: object, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "data")
    store.write("sweet_points", 1, content)
    store.close(DEADLINE_S)
    with caplog.at_level(logging.WARNING):
        assert reopened(tmp_path / "data").first == ()
    assert "what was learned is lost" in caplog.text


def test_the_file_is_bounded_and_keeps_the_last_services(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    one = learned("x" * 1000)
    many = [one._replace(service=f"{number}-{one.service}") for number in range(2000)]
    LearnedStore(store).write(many)
    store.close(DEADLINE_S)
    assert (tmp_path / "data" / "sweet_points.json").stat().st_size <= 1 << 20
    found = reopened(tmp_path / "data").first
    assert 100 < len(found) < 2000
    assert found[-1] == many[-1]


def test_nothing_learned_does_not_overwrite_what_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    LearnedStore(store).write([learned("web")])
    LearnedStore(store).write(())
    store.close(DEADLINE_S)
    content = json.loads((tmp_path / "data" / "sweet_points.json").read_text())["content"]
    assert len(content) == 1


def test_it_is_written_every_ten_minutes(tmp_path: Path) -> None:
    store = LearnedStore(Store(tmp_path / "data"))
    due = [store.is_due(second * NS_PER_SEC) for second in range(0, 2400, 60)]
    assert [number for number, each in enumerate(due) if each] == [10, 20, 30]
