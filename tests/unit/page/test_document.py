# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A page with hostile texts in every place stays the page that it is."""

from datetime import UTC
from html.parser import HTMLParser
from random import Random
import re
from typing import Any

import pytest

from controller.page.chart import Band, Chart, Marker, Series
from controller.page.document import (
    Badge,
    Bar,
    Card,
    Cards,
    Document,
    Facts,
    Fold,
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
from tests.support.hostile.mutations import mutated_tree

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
    card = Card(title=text, figure=text, says=text, details=(text,), kind="good")
    parts = (chart, table, Facts(((text, text),)), Text(text), (text, text), Cards((card,)))
    folded = Fold(title=text, parts=parts)
    return Document(
        title=text,
        lead=text,
        badge=Badge(text, "on"),
        summary=text,
        notes=(text,),
        sections=(Section(title=text, parts=(*parts, folded)),),
    )


def test_hostile_texts_are_text() -> None:
    harmless = Tags("".join(render(document("x"))))
    hostile = Tags("".join(render(document(HOSTILE))))
    assert hostile.tags == harmless.tags
    assert hostile.attributes == harmless.attributes
    assert "script" not in hostile.tags
    assert hostile.text.count("<script>alert(1)</script>") >= 9


def test_what_is_folded_has_identities_of_its_own() -> None:
    identities = re.findall(' id="(.*?)"', "".join(render(document("x"))))
    assert len(identities) == len(set(identities)) == 10


def test_the_sentence_and_the_health_are_renewed_with_the_page() -> None:
    status = {"ready": True, "mode": "enforce", "tick": {"count": 3}}
    page = page_text(status)
    main = page[page.index("<main") : page.index("</main>")]
    assert '<p class="summary"><b class="badge on">enforcing</b> No service has' in main
    assert main.index("The agent itself") > main.index("Decisions")
    assert "tick" not in page[page.index("<header") : page.index("</header>")]


@pytest.mark.parametrize("ratio", [0.0, 1e-9, 0.5, 1.0, 3.0, 1e300])
def test_a_bar_ends_in_its_picture(ratio: float) -> None:
    table = Table(caption="c", headings=("a", "b"), rows=[("x", Bar(ratio))])
    page = "".join(render(Document(title="t", sections=(Section(title="s", parts=(table,)),))))
    within, *beyond = [float(each) for each in re.findall(r"M(?:0|50) 2h([\d.]+)v8", page)]
    assert 0 <= within <= 50 and all(0 < each <= 50 for each in beyond)
    assert bool(beyond) == (ratio > 1)


def test_only_a_live_page_may_run_its_script() -> None:
    assert "script-src 'none'" in policy(live=False)
    assert "connect-src" not in policy(live=False)
    assert "script-src 'sha256-" in policy(live=True)


@pytest.mark.parametrize("damage", [[], 7, "x", {"service": 1}, [{"service": HOSTILE}], [[]]])
@pytest.mark.parametrize("field", ["plan", "suffered", "workloads", "decisions", "history"])
def test_a_page_of_another_version_is_shown_as_far_as_it_goes(field: str, damage: object) -> None:
    status = {"ready": True, "mode": "observe", field: damage}
    view = Tracker().update(status)
    page = "".join(render(node_document(view, status, None, UTC, HOSTILE, 2)))
    assert Tags(page).tags.count("script") == 1
    assert "What enforcing would bring" in page


STATUS: dict[str, Any] = {
    **{"ready": True, "mode": "enforce", "time_ns": 9e9, "data_age_ns": 5, "ran_ns": 8e9},
    "tick": {"duration_ns": 4e5, "duration_p99_ns": 2e6, "count": 9, "overruns": 1, "failed": 0},
    "agent": {"used_cpus": 0.01, "budget_cpus": 0.2, "pss_bytes": 9, "budget_bytes": 99},
    "workloads": [
        {
            **{"name": "job", "path": "/batch/job", "qos": "best-effort", "cgroup": ["cpu", 1]},
            **{"limit_cpus": 0.5, "quota_at": ["cgroup", "cpu", 7, "/batch"], "oncpu_ns": 5},
        }
    ],
    "knobs": [
        {"path": "/batch/job", "knob": "cpu.quota", "applied": "5000 100000 0"},
        {"path": "/batch", "knob": "cpu.idle", "applied": "1"},
    ],
    "plan": {
        "quota_granted_cpus": 0.05,
        "rungs": [{"channel": "cpu", "knob": "cpu.quota", "part": 0.5, "usable": True}],
        "loops": [
            {
                **{"service": "web", "indicator": "runq_p99", "channel": "cpu", "is_time": True},
                **{"status": "fresh", "value": 3e6, "sweet_point": 2e6},
            }
        ],
        "causes": [{"channel": "cpu", "service": "web", "be_share": 0.1, "culprits": []}],
        "demands": [{"channel": "cpu", "state": "squeeze", "applied": 0.3, "service": "web"}],
    },
    "decisions": [{"time_ns": 8e9, "subject": "web", "text": "web runq_p99 3ms > 2ms"}] * 3,
    "suffered": [{"service": "web", "channel": "cpu", "state": "squeeze", "time_ns": 5e9}],
}


def test_any_status_is_a_page_without_foreign_tags() -> None:
    random = Random(7)
    usual = set(page_of(STATUS).tags)
    for _ in range(400):
        found = page_of(mutated_tree(random, STATUS))
        assert set(found.tags) <= usual | {"li", "ul"}
        assert found.tags.count("script") == 1


def page_of(status: object) -> Tags:
    shown = status if isinstance(status, dict) else {}
    return Tags(page_text(shown))


def test_channel_and_data_are_two_columns_with_units_in_the_others() -> None:
    rows = re.findall("<tr>(.*?)</tr>", page_text(STATUS))
    heading, row = ([*re.findall(">([^<>]+)<", each)] for each in rows[:2])
    assert heading[:5] == ["service", "indicator", "channel", "data", "state"]
    assert row[2:4] == ["cpu", "fresh"]
    assert row[5].split("\N{NO-BREAK SPACE}") == ["3", "ms"]


def page_text(status: dict[str, Any]) -> str:
    document = node_document(Tracker().update(status), status, None, UTC, "host", 2)
    return "".join(render(document))


def observing(history: dict[str, object]) -> str:
    suffered = [{"service": "web", "channel": "cpu", "state": "not-be", "time_ns": 10**10}]
    status = {
        **{"ready": True, "mode": "observe", "ran_ns": 10**11},
        **{"suffered": suffered, "history": history},
    }
    return "".join(render(node_document(Tracker().update(status), status, None, UTC, "host", 2)))


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
