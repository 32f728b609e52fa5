# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A page with hostile texts in every place stays the page that it is."""

from datetime import UTC
from html.parser import HTMLParser

import pytest

from controller.page.chart import Band, Chart, Marker, Series
from controller.page.document import (
    Bar,
    Document,
    Facts,
    Section,
    Share,
    Table,
    Text,
    policy,
    render,
)
from controller.page.hours import Hours, sections
from controller.page.node import node_document
from controller.page.view import Tracker

HOSTILE = "</title></style></script><script>alert(1)</script><img src=x onerror='alert(1)'>\"'&"


class Tags(HTMLParser):
    """Counts tags and collects attributes; ``text`` is what a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def document(text: str) -> Document:
    line = Series(label=text, style="a", points=[(0.0, 1.0), (9.0, 2.0)])
    chart = Chart(
        title=text,
        unit=text,
        seconds=10.0,
        series=[line],
        bands=[Band(from_s=0.0, to_s=10.0, style="dropped", label=text)],
        markers=[Marker(3.0, text)],
    )
    rows = [(text, text, Bar(1.5), Share(0.5)), (text, text, Bar(None), Share(None))]
    table = Table(caption=text, headings=[text] * 4, rows=rows, left=2)
    parts = (chart, table, Facts(((text, text),)), Text(text), (text, text))
    return Document(
        title=text, lead=text, notes=(text,), sections=(Section(title=text, parts=parts),)
    )


def test_hostile_texts_are_text() -> None:
    harmless = Tags("".join(render(document("x"))))
    hostile = Tags("".join(render(document(HOSTILE))))
    assert hostile.tags == harmless.tags
    assert hostile.attributes == harmless.attributes
    assert "script" not in hostile.tags
    assert hostile.text.count("<script>alert(1)</script>") >= 9


def test_only_a_live_page_may_run_its_script() -> None:
    assert "script-src 'none'" in policy(live=False)
    assert "connect-src" not in policy(live=False)
    assert "script-src 'sha256-" in policy(live=True)


@pytest.mark.parametrize("damage", [[], 7, "x", {"service": 1}, [{"service": HOSTILE}], [[]]])
@pytest.mark.parametrize("field", ["plan", "suffered", "workloads", "decisions", "history"])
def test_a_page_of_another_version_is_shown_as_far_as_it_goes(field: str, damage: object) -> None:
    status = {"ready": True, "mode": "observe", field: damage}
    view = Tracker().update(status)
    page = "".join(render(node_document(view, status, None, UTC, HOSTILE)))
    assert Tags(page).tags.count("script") == 1
    assert "What enforcing would bring" in page


def observing(history: dict[str, object]) -> str:
    suffered = [{"service": "web", "channel": "cpu", "state": "not-be", "time_ns": 10**10}]
    status = {
        **{"ready": True, "mode": "observe", "ran_ns": 10**11},
        **{"suffered": suffered, "history": history},
    }
    return "".join(render(node_document(Tracker().update(status), status, None, UTC, "host")))


def test_what_enforcing_would_bring_is_what_advise_says() -> None:
    page = observing({"enabled": True, "cut_cpu_s": 12.0})
    assert "limited for another service or on another channel, or yields by sched-idle" in page
    assert "at most 12 CPU seconds" in page


def test_without_a_history_the_cut_is_not_zero() -> None:
    page = observing({"enabled": False, "cut_cpu_s": 0.0})
    assert "is N/A: no history is kept" in page
    assert "at most" not in page


def test_without_moments_there_are_no_charts() -> None:
    (section,) = sections(Hours(10**9, 10), UTC)
    assert section.parts == (Text("Nothing is known yet.", "soft"),)
