# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint top``: pages of a real server become rows; hostile pages become nothing worse."""

from collections.abc import Iterator
from dataclasses import replace
import io
import json
import os
from pathlib import Path
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from rich.console import Console

from controller.cli.main import main
from controller.cli.top import plain
from controller.cli.top_screen import draw
from controller.core.decision import Cause, Culprit, LearnedReport, Plan, Verdict
from controller.core.model import CgroupId, Channel, IndicatorName, Knob, KnobReading, KnobValue
from controller.demo.programs import free_port
from controller.host.pause_file import PauseEntry, PauseState
from controller.page.quantities import position
from controller.page.view import (
    ChannelRow,
    ServiceRow,
    Tracker,
    View,
    WorkloadRow,
    bar,
    spark,
)
from controller.telemetry.http import StatusServer
from controller.telemetry.report import PublishedState
from tests.support.reports import JOB, report
from tests.support.waiting import DEADLINE_S


def published(time_ns: int = 10**9, oncpu_ns: int = 0) -> PublishedState:
    """Return the state of an agent that squeezes a job for a service, and is paused."""
    first = report(time_ns)
    plan = first.plan
    culprits = (Culprit(CgroupId("cpu", 7), 0.8),)
    cause = Cause(channel=Channel.CPU, service="web", be_share=0.9, culprits=culprits)
    state = PublishedState()
    state.report = report(
        time_ns,
        plan=Plan(
            time_ns=time_ns,
            demands=plan.demands,
            loops=plan.loops,
            causes=(cause,),
            quota_granted_cpus=0.5,
        ),
        knobs=(
            KnobReading(JOB, Knob.CPU_QUOTA, KnobValue("25000 50000 0"), KnobValue("max 1 0")),
            KnobReading(JOB._replace(path="/batch"), Knob.SCHED_IDLE, KnobValue("1")),
        ),
        samples=tuple(each._replace(oncpu_ns=oncpu_ns) for each in first.samples),
        pauses=PauseState(entries=(("file", PauseEntry("service", "db\x1b", 1e9)),)),
        probe_problems={"net": "no cgroup2 tree"},
    )
    state.count(Plan(time_ns=0, verdicts=(Verdict(subject="web", text="squeezed\x1b[31m"),)), ())
    return state


def page(state: PublishedState) -> dict[str, Any]:
    port = free_port()
    server = StatusServer(state, ("127.0.0.1", port), healthy_ns=10**9)
    try:
        import urllib.request

        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/statusz", timeout=DEADLINE_S
        ) as answer:
            return dict(json.load(answer))
    finally:
        server.close()


def test_a_page_becomes_rows() -> None:
    tracker = Tracker()
    tracker.update(page(published(10**9, 10**9)))
    view = tracker.update(page(published(3 * 10**9, 2 * 10**9)))
    assert "enforce" in view.head and "best-effort may use 0.50cpu" in view.head
    assert view.notes[:2] == (r"paused: service db\x1b", "probe net is off: no cgroup2 tree")
    (service,) = view.services
    assert service[:7] == ("web", "runq_p99", "cpu", "fresh", "3ms", "2ms", "")
    assert service.ratio == 1.5
    assert service.trend == (1.5, 1.5)
    (job,) = view.workloads
    # sched-idle lies on the cgroup above the job.
    assert job == ("job", "0.50cpu, idle", 0.5, 0.8, "web")
    (channel,) = view.channels
    assert (channel.state, channel.demand, channel.service) == ("squeeze", 0.2, "web")
    assert view.decisions == (r"     3s ago  web: squeezed\x1b[31m",)


def test_filter_and_order() -> None:
    first = page(published())
    jobs = [
        {"name": f"job{i}", "qos": "best-effort", "path": f"/j{i}", "cgroup": ["cpu", i]}
        for i in range(3)
    ]
    first["workloads"] = [{**job, "oncpu_ns": 0} for job in jobs]
    second = {**first, "time_ns": first["time_ns"] + 10**9}
    second["workloads"] = [{**job, "oncpu_ns": i * 10**8} for i, job in enumerate(jobs)]
    tracker = Tracker(sort="use")
    tracker.update(first)
    assert [each.name for each in tracker.update(second).workloads] == ["job2", "job1", "job0"]
    tracker.sort = "name"
    assert [each.name for each in tracker.again(second).workloads] == ["job0", "job1", "job2"]
    tracker.pattern = "*2"
    view = tracker.again(second)
    assert [each.name for each in view.workloads] == ["job2"]
    assert view.services == ()


def test_where_a_sweet_point_is_from() -> None:
    learned = LearnedReport(
        service="web",
        indicator=IndicatorName.RUNQ_P99,
        sweet_point=2e6,
        is_sure=False,
        certainty=0.4,
        windows=24,
        disturbance="",
        is_time=True,
    )
    state = published()
    first = state.report
    assert first is not None
    state.report = replace(first, plan=replace(first.plan, learned=(learned,)))
    (row,) = Tracker().update(page(state)).services
    assert (row.sweet_point, row.origin) == ("2ms", "learning, 40%")
    sure = replace(learned, is_sure=True)
    state.report = replace(first, plan=replace(first.plan, learned=(sure,)))
    view = Tracker().update(page(state))
    assert any("3ms of 2ms (learned) (1.50 times)" in line for line in plain(view))


def test_one_service_is_shown_with_what_harms_it() -> None:
    first = page(published())
    first["workloads"] += [{**first["workloads"][-1], "name": "idle", "cgroup": ["cpu", 9]}]
    first["plan"]["loops"] += [{**first["plan"]["loops"][0], "service": "web2"}]
    view = Tracker(service="web").update(first)
    assert [each.service for each in view.services] == ["web"]
    assert [each.name for each in view.workloads] == ["job"]
    assert Tracker(service="web2").update(first).workloads == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    ["plan", "workloads", "knobs", "decisions", "pauses", "probes", "tick", "agent", "time_ns"]
)
INNER = st.sampled_from(
    [
        *("loops", "demands", "rungs", "causes", "service", "indicator", "value", "sweet_point"),
        *("channel", "culprits", "share", "cgroup", "path", "name", "qos", "oncpu_ns", "applied"),
    ]
)
RECORDS = st.lists(st.dictionaries(INNER, JSON, max_size=6), max_size=3)


PAGES = st.dictionaries(
    FIELDS, JSON | RECORDS | st.dictionaries(INNER, RECORDS, max_size=3), max_size=5
)


@given(st.lists(PAGES, max_size=2), st.integers(1, 100), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_any_page_is_shown_without_control_characters(
    pages: list[dict[str, Any]], width: int, height: int
) -> None:
    tracker = Tracker()
    for each in pages:
        view = tracker.update(each)
        assert all(line.isprintable() for line in plain(view, detail=True))
        file = io.StringIO()
        console = Console(file=file, width=width, height=height, force_terminal=False)
        console.print(draw(view, detail=False, height=height, hint=""))
        assert all(line.isprintable() for line in file.getvalue().split("\n"))


def test_bar_and_trend() -> None:
    assert bar(None, 4) == "    "
    assert [bar(ratio, 8) for ratio in (0.0, 0.5, 1.0, 1.01, 2.0, 12.8, 137.0)] == [
        *("........", "##......", "####....", "####!...", "####!...", "####!!..", "####!!!!")
    ]
    assert spark([0.0, None, 1.0, 9.0, 100.0], 6) == " ▁ ▅▆█"


@given(st.floats(0, 1e30), st.floats(0, 1e30))
def test_more_is_never_drawn_shorter(one: float, other: float) -> None:
    least, most = sorted((one, other))
    assert 0 <= position(least) <= position(most) <= 1
    assert bar(least, 16).rstrip(".") <= bar(most, 16).rstrip(".")


def test_bars_tell_apart_what_hurts_from_what_hurts_more() -> None:
    """Also far above the sweet point, up to a hundred times."""
    bars = [bar(ratio, 16) for ratio in (1.0, 2.0, 6.0, 13.0, 40.0, 100.0)]
    assert len({*bars}) == len(bars)


ROW = ServiceRow(
    service="shop/checkout-frontend",
    indicator="runq_delay_p99",
    channel="cpu",
    status="fresh",
    value="137.4ms",
    sweet_point="2.125ms",
    origin="learning, 40%",
    ratio=64.7,
    trend=(0.5,) * 59 + (64.7,),
)
WIDE = View(
    head="enforce",
    notes=(),
    services=(ROW, ROW._replace(service="web", origin="", ratio=None)),
    workloads=(
        WorkloadRow(
            "batch:encode-a-long-name.service",
            "0.05cpu, idle",
            1.25,
            0.83,
            "shop/checkout, web",
        ),
    ),
    channels=(ChannelRow("cpu", "squeeze", 0.5, "shop/checkout", "quota 0.05cpu, idle on"),),
    decisions=("   3s ago  web: squeezed",),
)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("detail", [False, True])
def test_numbers_are_whole_whatever_the_width_of_the_terminal(width: int, detail: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, height=40, force_terminal=False)
    console.print(draw(WIDE, detail=detail, height=40, hint=""))
    shown = file.getvalue()
    assert all(len(line) <= width for line in shown.splitlines())
    for number in ("137.4ms", "2.125ms", " 64.7 ", "0.05cpu, idle", "1.25cpu", "83%", "50%"):
        assert number in shown
    assert "runq_delay_p99" in shown
    assert "shop/chec" in shown
    if width >= 120:
        assert f"{spark(ROW.trend, 8)} " in shown  # the newest
        assert "cpu     fresh" in shown
    if width == 200:
        assert spark(ROW.trend, 60) in shown
        assert "learning, 40%" in shown


def paused(*entries: tuple[str, str]) -> dict[str, Any]:
    first = page(published())
    other = {**first["workloads"][-1], "name": "other", "cgroup": ["cpu", 9], "path": "/other"}
    first["workloads"].append(other)
    first["pauses"] = [{"scope": scope, "name": name} for scope, name in entries]
    return first


@pytest.mark.parametrize(
    ("entries", "head", "rows"),
    [
        ((), "best-effort may use 0.50cpu", {"job": "0.50cpu, idle", "other": "no quota"}),
        ((("everything", ""),), "best-effort is paused", {"job": "paused", "other": "paused"}),
        (
            (("workload", "job"), ("workload", "other")),
            "best-effort is paused",
            {"job": "paused", "other": "paused"},
        ),
        (
            (("workload", "job"), ("service", "web")),
            "best-effort may use 0.50cpu (1 of 2 workloads paused)",
            {"job": "paused", "other": "no quota"},
        ),
    ],
)
def test_what_is_paused_is_said_to_be(
    entries: tuple[tuple[str, str], ...], head: str, rows: dict[str, str]
) -> None:
    view = Tracker().update(paused(*entries))
    assert view.head.split(" | ")[1] == head
    assert {each.name: each.allowance for each in view.workloads} == rows
    assert any(f"workload job {rows['job']}, uses" in line for line in plain(view))


def test_a_pause_covers_the_containers_of_a_pod_and_the_entries_of_a_pattern() -> None:
    first = paused(("workload", "shop/job"), ("workload", "batch"))
    first["workloads"][-2] |= {"name": "shop/job/main", "service": "shop/job", "container_of": []}
    first["workloads"][-1] |= {"name": "batch:encode.service"}
    assert {each.allowance for each in Tracker().update(first).workloads} == {"paused"}


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(port: int) -> Iterator[StatusServer]:
    server = StatusServer(published(), ("127.0.0.1", port), healthy_ns=10**9)
    yield server
    server.close()


@pytest.fixture
def agent(port: int, server: StatusServer) -> str:
    return f"http://127.0.0.1:{port}"


def test_in_a_pipe_it_prints_plain_lines(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--url", agent]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "service web runq_p99 3ms of 2ms (1.50 times) [#####!....] cpu fresh" in lines
    assert "workload job 0.50cpu, idle, uses -, 80% of what hurts web" in lines
    assert "channel cpu squeeze 20% web, quota 0.50cpu on 1 cgroup" in lines
    assert main(["top", "--once", "--raw", "--url", agent]) == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "enforce"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file or directory"),
        ("secret-part-one\nsecret-part-two\n", "must have one line"),
        ("geheim-ü", "not ASCII text"),
    ],
)
def test_a_bad_token_is_named_and_not_shown(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    arguments = ["--url", "http://127.0.0.1:1", "--token-file", str(token)]
    assert main(["top", "--once", *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown == f"sweetpoint: --token-file {token}: {message}\n"


def test_the_address_and_the_token_are_those_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    token, config = tmp_path / "token", tmp_path / "config.yaml"
    token.write_text("secret-of-sixteen-characters\n")
    config.write_text(
        f"http: 0.0.0.0:{port}\nhttp_token_file: {token}\n"
        "workloads: [{name: a, cgroup: /a, class: best-effort}]\n"
    )
    address = ("127.0.0.1", port)
    server = StatusServer(published(), address, healthy_ns=10**9, token_file=token)
    try:
        assert main(["top", "--once", "--config", str(config)]) == 0
        assert "service web" in capsys.readouterr().out
        assert main(["top", "--once", "--url", f"http://127.0.0.1:{port}"]) == 1
        assert "see --token-file" in capsys.readouterr().err
    finally:
        server.close()
    assert main(["top", "--once", "--config", str(config)]) == 1
    assert "does the agent run?" in capsys.readouterr().err


def test_a_reason_from_a_server_has_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x1b]0;title\x07 no HTTP\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert main(["top", "--once", "--url", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 1
        thread.join()
    text = capsys.readouterr().err
    assert "title" in text and text.strip().isprintable()


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "file:///etc/passwd"]) == 1
    assert main(["top", "--config", str(tmp_path / "missing.yaml")]) == 2
    assert main(["top", "--interval", "0", "--url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().out == ""


KUBECTL = """\
#!/bin/sh
case "$1" in
get) [ "$6" != "--field-selector=spec.nodeName=n1,status.phase=Running" ] || echo ns agent-x ;;
exec)
    run="/opt/sweetpoint/bin/sweetpoint top --raw --interval 2"
    [ "$*" = "exec -n ns agent-x -- $run" ] && cat page && exec sleep 60
    [ "$*" = "exec -n ns agent-x -- $run --once" ] && head -n 1 page ;;
esac
"""


def test_the_agent_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    pages = [page(published(10**9, 10**9)), page(published(3 * 10**9, 2 * 10**9))]
    (tmp_path / "page").write_text("".join(f"{json.dumps(each)}\n" for each in pages))
    assert main(["top", "--once", "--node", "n1"]) == 0
    out = capsys.readouterr().out
    assert "workload job 0.50cpu, idle, uses 0.50cpu" in out and out.count("service web") == 1
    assert main(["top", "--once", "--raw", "--node", "n1"]) == 0
    assert json.loads(capsys.readouterr().out) == pages[0]
    assert main(["top", "--once", "--node", "n2"]) == 1
    assert "no agent runs on node 'n2'" in capsys.readouterr().err
    (tmp_path / "page").write_text("<html>\n")
    assert main(["top", "--once", "--node", "n1"]) == 1
    assert "not a page of an agent" in capsys.readouterr().err


class Terminal:
    """``sweetpoint top`` on a terminal of *columns* times *lines*; ``shown`` is its output."""

    def __init__(self, url: str, columns: int = 100, lines: int = 30) -> None:
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (lines, columns))
        self.before = termios.tcgetattr(self.slave)
        self.shown = b""
        command = [sys.executable, "-m", "controller.cli.main", "top", "--interval", "0.2"]
        environment = {**os.environ, "TERM": "xterm"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*command, "--url", url],
            stdin=self.slave,
            stdout=self.slave,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def read_until(self, wanted: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while wanted not in self.shown:
            assert time.monotonic() < deadline, self.shown
            ready, _, _ = select.select([self.master], [], [], 1.0)
            if ready:
                self.shown += os.read(self.master, 65536)

    def check_it_is_as_before(self) -> None:
        """Check that the other screen was left, and that keys are shown again."""
        self.read_until(b"\x1b[?1049l")
        assert b"\x1b[?25h" in self.shown.rpartition(b"\x1b[?25l")[2]
        assert termios.tcgetattr(self.slave) == self.before


@pytest.fixture
def terminal(agent: str, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    terminal = Terminal(agent, *getattr(request, "param", ()))
    yield terminal
    terminal.process.kill()
    terminal.process.wait()
    os.close(terminal.master)
    os.close(terminal.slave)


def test_on_a_terminal_it_draws_and_obeys_keys(terminal: Terminal) -> None:
    terminal.read_until(b"order (harm)")
    assert b"runq_p99" in terminal.shown and b"3ms" in terminal.shown
    assert b"\x1b[31m]" not in terminal.shown
    terminal.type(b"s")
    terminal.read_until(b"order (use)")
    # Pasted at once, so that one read(2) returns all of it.
    terminal.type(b"/job\ns")
    terminal.read_until(b"order (name)  /: filter (*job*)")
    terminal.type(b"q")
    assert terminal.process.wait(DEADLINE_S) == 0
    terminal.check_it_is_as_before()


def test_an_interrupt_leaves_the_terminal_as_before(terminal: Terminal) -> None:
    terminal.read_until(b"order (harm)")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(DEADLINE_S) == 130
    terminal.check_it_is_as_before()
    assert b"Traceback" not in terminal.shown


@pytest.mark.parametrize("terminal", [(1, 1), (8, 3), (400, 2)], indirect=True)
def test_a_tiny_terminal(terminal: Terminal) -> None:
    terminal.read_until(b"\x1b[?1049h")
    terminal.type(b"sd/x\nq")
    assert terminal.process.wait(DEADLINE_S) == 0
    terminal.check_it_is_as_before()
    assert b"Traceback" not in terminal.shown


def test_an_agent_that_ends_is_told(terminal: Terminal, server: StatusServer) -> None:
    terminal.read_until(b"order (harm)")
    server.close()
    terminal.read_until(b"not live: ")
    terminal.type(b"s")  # keys still work
    terminal.read_until(b"order (use)")
    terminal.type(b"q")
    assert terminal.process.wait(DEADLINE_S) == 0
