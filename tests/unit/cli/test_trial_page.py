# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a trial: what it says, of one node and of several, and of hostile names."""

from dataclasses import replace
from pathlib import Path
import re

import pytest

from controller.cli.main import main
from controller.cli.trial_page import trial_page
from controller.trial.blocks import Design, Pair, Results, Work, append, start
from tests.support.trial import noisy_pairs, pair, timed

DESIGN = Design.of(7200.0, 120.0, 20.0, 0.5, 7)
HOSTILE = "<script>alert(1)</script>\x1b[2J"


def results(node: str, seed: int, less: float = 0.3, work: float = 0.9) -> Results:
    return Results(node, DESIGN, timed(DESIGN, noisy_pairs(seed, 30, less=less, work=work)))


def rows(page: str) -> list[list[str]]:
    """Return the cells of all rows of tables."""
    found = re.findall(r"<tr>(.*?)</tr>", page)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", each) for each in found]


def cards(page: str) -> list[tuple[str, str, str]]:
    """Return the kind, title and figure of each card."""
    pattern = r'<article class="card (\w+)"><h3>(.*?)</h3><p class="figure">(.*?)</p>'
    return re.findall(pattern, page)


def test_a_card_per_service_and_one_of_the_work() -> None:
    page = trial_page([results("node-1", 1)], "")
    assert cards(page) == [
        ("good", "web", "-29.9 points"),
        ("bad", "best-effort work", "0.903 times"),
    ]
    assert "30 pairs on node-1, from 2026-09-21 14:13 UTC on." in page
    assert page.count("<figcaption") - page.count("<table") == 2  # a chart of each
    assert ["web", "10.0\N{NO-BREAK SPACE}%"] in [row[:2] for row in rows(page)]
    assert 'class="notes"' not in page


def test_other_work_has_cards_too() -> None:
    pairs = [
        Pair(
            *(
                replace(each, work={Work.NETWORK: network, Work.PODS: pods})
                for each, network, pods in zip(pair, (6.0, 12.0), (at % 3, 20.0), strict=True)
            )
        )
        for at, pair in enumerate(results("node-1", 1).pairs)
    ]
    page = trial_page([Results("node-1", DESIGN, pairs)], "")
    assert cards(page)[2:] == [
        ("bad", "best-effort network (MB/s)", "0.500 times"),
        ("bad", "best-effort pods completed (per hour)", "-19"),
    ]


def test_no_difference_is_grey_and_says_how_many_pairs_it_needs() -> None:
    page = trial_page([results("node-1", 3, less=0.01, work=1.0)], "")
    assert [kind for kind, _, _ in cards(page)] == ["unsure", "unsure"]
    assert re.search(r"\d+ more pairs would show an effect so large", page)


def test_several_nodes_have_a_table_and_no_charts() -> None:
    page = trial_page([results("node-1", 1), results("node-2", 2, less=0.0)], "")
    assert "60 pairs on node-1, node-2, from" in page
    of_nodes = [row for row in rows(page) if row[0].startswith("node-") and row[1] == "web"]
    assert [(row[0], row[-1]) for row in of_nodes] == [
        ("node-1", "better"),
        ("node-2", "no difference shown"),
    ]
    assert "Over time" not in page


def test_names_and_reasons_from_elsewhere_are_only_text() -> None:
    (first, *_) = results("node", 1).pairs
    blocks = [replace(each, suffered_ratio={HOSTILE: 0.5}, values={HOSTILE: 1.0}) for each in first]
    page = trial_page([Results(HOSTILE, DESIGN, [Pair(*blocks)])], HOSTILE)
    assert "<script" not in page and "\x1b" not in page
    assert "&lt;script&gt;" in page
    assert "The trial ended before its time: " in page


def test_without_a_pair_nothing_is_known() -> None:
    page = trial_page([Results("node", DESIGN, [])], "interrupted")
    assert "No pair was finished, so nothing is known." in page
    assert cards(page) == []
    assert rows(page) == []


def test_one_pair_has_no_interval() -> None:
    page = trial_page([Results("node", DESIGN, [pair((0.1, 1.0), (0.5, 1.0))])], "")
    assert [kind for kind, _, _ in cards(page)] == ["unsure", "unsure"]
    assert "not known from one pair" in page and "inf" not in page


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "trial.jsonl", tmp_path / "trial.html"
    start(file, "node-1", DESIGN)
    for each in results("node-1", 1).pairs:
        append(file, each)
    assert main(["trial", "--read", str(file), "--report", str(page)]) == 0
    assert cards(page.read_text()) == cards(trial_page([results("node-1", 1)], ""))
    assert capsys.readouterr().out.startswith("30 pairs; ")
    missing = tmp_path / "missing" / "trial.html"
    assert main(["trial", "--read", str(file), "--report", str(missing)]) == 2
    assert f"{missing.parent} is no directory" in capsys.readouterr().err
