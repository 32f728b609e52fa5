# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML page in a real browser: its policy, its width, its accessibility, and its updates.

The pages are those of a simulated node with hostile names, of a replay, of the demonstration,
and of a trial.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import unescape
from importlib.resources import files
import io
import json
from pathlib import Path
import re
import subprocess
from typing import Any
import urllib.request

import pytest

from controller.cli.demo import add_arguments
from controller.cli.demo import main as demo
from controller.cli.main import main
from controller.cli.trial_page import trial_page
from controller.core.decision import Plan
from controller.core.model import Mode
from controller.demo.programs import free_port
from controller.demo.simulated_node import SimulatedNode
from controller.telemetry.http import StatusServer
from controller.telemetry.report import HistoryState, PublishedState
from controller.trial.blocks import Design, Results
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.history_loop import RecordedLoop
from tests.support.needs import needs_program
from tests.support.reports import report
from tests.support.trial import noisy_pairs, timed
from tests.support.waiting import DEADLINE_S

BROWSER = "chromium-headless-shell"
pytestmark = needs_program(BROWSER)

HOSTILE = "</script><script>document.title='owned'</script><img src=http://192.0.2.1/x onerror=x>"
LONG = "a-namespace-with-a-long-name/a-statefulset-with-a-longer-name-0"
# What the page says of itself when it is drawn: what is wider than its place, and has no shadow
# there; which words of headings are broken; what axe finds.
PROBE = """
function brokenWords(heading) {
  const range = document.createRange(), node = heading.firstChild;
  return [...node.data.matchAll(/[a-z]+/gi)].filter(word => {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].length);
    return range.getClientRects().length > 1;
  }).map(word => word[0]);
}
addEventListener("load", async () => {
  const wide = [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth);
  const found = await axe.run(document, {resultTypes: ["violations", "passes"]});
  const result = {
    tables: wide.filter(e => e.querySelector("table")).map(e => e.id),
    plain: wide.filter(e => !getComputedStyle(e).backgroundAttachment.includes("local")).length,
    broken: [...document.querySelectorAll("thead th")].flatMap(brokenWords),
    page: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    title: document.title,
    checked: found.passes.map(e => e.id),
    axe: found.violations.map(e => e.id + ": " + e.nodes.map(n => n.html).join(" ")),
  };
  const element = document.createElement("pre");
  element.id = "result";
  element.textContent = JSON.stringify(result);
  document.body.append(element);
});
"""


@dataclass(slots=True)
class Counted(PublishedState):
    """Counts its pages, which have their number in them."""

    pages: int = 0

    def status(self) -> Iterator[tuple[str, Any]]:
        self.pages += 1
        assert self.report is not None
        self.report = replace(self.report, config_problem=f"page {self.pages}")
        return PublishedState.status(self)


class Node:
    """The published state of an agent that observes a simulated node, and its last hour."""

    def __init__(self, data_dir: Path) -> None:
        node = SimulatedNode(3, wants=(0.0,) * 6)
        for index, name in enumerate((HOSTILE, LONG)):
            node.best_effort[index] = node.best_effort[index]._replace(name=name)
        self.loop = RecordedLoop(node, make_settings(mode=Mode.OBSERVE), data_dir)
        self.published = Counted()
        self.published.durations_ns.extend((2_000_000, 3_000_000))
        for wants in ((0.0,) * 6, (1.2, 0.9, 0.3, 0.1, 0.1, 0.1)):
            node.wants = list(wants)
            self.loop.run(300, self.publish)
        self.loop.stop()

    def publish(self, plan: Plan) -> None:
        self.published.count(plan, ())
        assert self.loop.latest is not None
        self.published.report = report(
            plan.time_ns,
            mode=Mode.OBSERVE,
            plan=plan,
            workloads=self.loop.workloads,
            samples=self.loop.latest.workloads,
            knobs=self.loop.latest.knobs,
            history=HistoryState(enabled=True, cut_cpu_s=100.0),
            probe_problems={"net": HOSTILE},
        )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(tmp_path_factory.mktemp("node"))


@pytest.fixture
def address(node: Node) -> Iterator[str]:
    port = free_port()
    server = StatusServer(
        node.published, ("127.0.0.1", port), healthy_ns=10**9, hours=node.loop.files.hours
    )
    yield f"http://127.0.0.1:{port}/"
    server.close()


def browse(tmp_path: Path, address: str, *options: str) -> tuple[str, list[str]]:
    """Return the document of *address* after its scripts ran, and what the console got."""
    done = subprocess.run(
        [
            BROWSER,
            # The tests run as root, which the browser's sandbox refuses.
            *("--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"),
            *(f"--user-data-dir={tmp_path / 'browser'}", *options, address),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, console


def live_page(address: str) -> str:
    """Return the page as a text, made by the server."""
    with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
        return str(answer.read().decode())


def replay_page(node: Node, tmp_path: Path) -> str:
    page = tmp_path / "replay.html"
    assert main(["replay", str(node.loop.data_dir), "--report", str(page)]) == 0
    return page.read_text()


def demo_page(tmp_path: Path) -> str:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    page = tmp_path / "demo.html"
    options = ["--simulate", "--seconds", "10", "--report", str(page)]
    assert demo(parser.parse_args(options), io.StringIO()) == 0
    return page.read_text()


def trial_page_of_a_node() -> str:
    design = Design.of(7200.0, 120.0, 20.0, 0.5, 7)
    pairs = timed(design, noisy_pairs(1, 30, less=0.3, work=0.9))
    return trial_page([Results("node-1", design, pairs)], "interrupted")


def drawn(page: str, tmp_path: Path, width: int, *, dark: bool = False) -> dict[str, Any]:
    """Return what ``PROBE`` finds in *page*, whose policy would not admit it."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    page = page.replace("<details>", "<details open>")
    if dark:
        page = page.replace("(prefers-color-scheme: dark)", "(min-width: 1px)")
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    file = tmp_path / "page.html"
    file.write_text(
        page.replace("</body>", f"<script>{axe}</script><script>{PROBE}</script></body>")
    )
    document, _ = browse(
        tmp_path, file.as_uri(), f"--window-size={width},900", "--virtual-time-budget=4000"
    )
    (found,) = re.findall(r'<pre id="result">(.*?)</pre>', document)
    result: dict[str, Any] = json.loads(unescape(found))
    # The rule is silent about a page whose colours it cannot compute.
    assert "color-contrast" in result["checked"]
    return result


@pytest.mark.parametrize(
    "width", [390, *(pytest.param(each, marks=pytest.mark.thorough) for each in (800, 1200))]
)
def test_the_page_of_an_agent(address: str, tmp_path: Path, width: int) -> None:
    found = drawn(live_page(address), tmp_path, width)
    assert found["axe"] == []
    assert found["title"].startswith("sweetpoint on ")
    assert found["page"] == 0
    assert (found["plain"], found["broken"]) == (0, [])
    assert width < 1200 or found["tables"] == []


@pytest.mark.thorough
def test_the_page_in_the_dark(address: str, tmp_path: Path) -> None:
    assert drawn(live_page(address), tmp_path, 1200, dark=True)["axe"] == []


@pytest.mark.thorough
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("made", ["replay", "demo", "trial"])
def test_the_pages_in_files(node: Node, tmp_path: Path, made: str, width: int) -> None:
    pages = {
        "replay": lambda: replay_page(node, tmp_path),
        "demo": lambda: demo_page(tmp_path),
        "trial": trial_page_of_a_node,
    }
    page = pages[made]()
    found = drawn(page, tmp_path, width)
    assert (found["axe"], found["page"]) == ([], 0)
    assert (found["plain"], found["broken"]) == (0, [])
    assert width < 1200 or found["tables"] == []


def test_the_page_renews_itself_and_breaks_no_rule_of_its_policy(
    node: Node, address: str, tmp_path: Path
) -> None:
    node.published.pages = 0
    document, console = browse(tmp_path, address, "--virtual-time-budget=12000")
    assert console == []
    # After five and ten seconds of the browser's time; the last one may still be on its way.
    assert node.published.pages in (2, 3)
    assert re.search("configuration: page [23]", document)
    assert "<title>sweetpoint on " in document
    assert 'id="live" hidden' not in document


def test_without_scripts_the_page_is_complete(address: str) -> None:
    page, scripts = re.subn(r"<script>.*?</script>", "", live_page(address), flags=re.DOTALL)
    assert scripts == 1
    assert "Reload the page to renew it." in page
    assert 'id="live" hidden' in page
    for title in ("sweet points", "would bring", "Over time", "Blame", "Channels", "Decisions"):
        assert re.search(rf"<h2[^>]*>[^<]*{title}", page)
