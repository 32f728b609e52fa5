# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The HTTP pages over a real socket, before the first tick and after it."""

from base64 import b64encode
from collections.abc import Iterator
import contextlib
from dataclasses import asdict
import hashlib
import http.client
import json
import os
import re
import socket
import struct
import threading
import time

from prometheus_client.parser import text_string_to_metric_families
import pytest

from controller.core.decision import (
    Plan,
    RungReport,
)
from controller.core.model import (
    Blame,
    CgroupId,
    Channel,
    Knob,
    KnobReading,
    KnobValue,
    QosClass,
    Target,
    TargetKind,
    Workload,
)
from controller.reconcilers.resctrl.monitored import MonitorState
from controller.telemetry.http import StatusServer
from controller.telemetry.http_limits import Pacer
from controller.telemetry.report import PublishedState
from tests.kernel.agent import eventually
from tests.reports import JOB, report


@pytest.fixture
def published() -> PublishedState:
    return PublishedState()


@pytest.fixture
def served(published: PublishedState) -> Iterator[tuple[StatusServer, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    server = StatusServer(published, ("127.0.0.1", number), healthy_ns=10**9)
    yield server, number
    server.close()


@pytest.fixture
def server(served: tuple[StatusServer, int]) -> StatusServer:
    return served[0]


@pytest.fixture
def port(served: tuple[StatusServer, int]) -> int:
    return served[1]


def get(port: int, page: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", page)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9464", 200),
        ("[::1]:9464", 200),
        ("10.1.2.3", 200),
        ("LocalHost:1", 200),
        (os.uname().nodename, 200),
        ("", 200),
        ("evil.example:9464", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1", 421),
    ],
)
def test_without_a_token_no_foreign_name_is_served(
    served: tuple[StatusServer, int], published: PublishedState, host: str, status: int
) -> None:
    published.report = report(1)
    for page in ("/", "/metrics", "/statusz"):
        connection = http.client.HTTPConnection("127.0.0.1", served[1], timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", page, headers={"Host": host})
            assert connection.getresponse().status == status


def http_headers(port: int, page: str) -> http.client.HTTPMessage:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", page)
    headers = connection.getresponse().headers
    connection.close()
    return headers


def test_before_the_first_tick(port: int) -> None:
    assert get(port, "/healthz")[0] == 503
    assert get(port, "/readyz")[0] == 503
    assert json.loads(get(port, "/statusz")[1]) == {"ready": False}
    assert get(port, "/metrics") == (200, "")
    assert get(port, "/etc/passwd")[0] == 404


def test_the_page_for_people_loads_nothing_and_runs_only_its_script(
    port: int, published: PublishedState
) -> None:
    assert "has not finished a tick" in get(port, "/")[1]
    published.report = report(time.monotonic_ns(), config_problem="<script>alert(1)</script>")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/?x")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        (inner,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "web" in text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert http_headers(port, "/healthz").get("Content-Security-Policy") is None


def test_health_is_the_age_of_the_last_tick(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns())
    assert get(port, "/healthz")[0] == 200
    assert get(port, "/readyz") == (200, "ready\n")
    published.report = report(time.monotonic_ns() - 2 * 10**9)
    assert get(port, "/healthz")[0] == 503


def test_ready_but_degraded_on_a_kernel_that_cannot_run_the_sched_probe(
    published: PublishedState,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = StatusServer(
        published, ("127.0.0.1", port), healthy_ns=10**9, unsupported="this kernel has no BTF"
    )
    try:
        # Before the first tick nothing is known yet.
        assert get(port, "/readyz")[0] == 503
        published.report = report(time.monotonic_ns(), probe_problems={"sched": "cannot load"})
        assert get(port, "/readyz") == (200, "degraded: this kernel has no BTF\n")
        published.report = report(time.monotonic_ns())
        assert get(port, "/readyz") == (200, "ready\n")
    finally:
        server.close()


def test_not_ready_without_the_sched_probe(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns(), probe_problems={"sched": "no BTF"})
    assert get(port, "/readyz") == (503, "sched: no BTF\n")


def test_statusz_has_the_whole_plan(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns())
    published.durations_ns.extend([1, 2, 3])
    published.lateness_ns.extend([40, 10, 20])
    status = json.loads(get(port, "/statusz")[1])
    assert status["plan"]["loops"][0]["indicator"] == "runq_p99"
    assert status["plan"] == json.loads(json.dumps(asdict(published.report.plan)))
    assert status["tick"]["duration_median_ns"] == 2
    assert status["tick"]["late_median_ns"] == 20
    assert (status["suffered"], status["ran_ns"]) == ([], 0)
    assert status["knobs"][0] == {
        "path": "/batch/job",
        "knob": "cpu.quota",
        "wanted": "5000 10000 0",
        "applied": "5000 10000 0",
    }


def test_statusz_has_every_record_with_all_its_fields(port: int, published: PublishedState) -> None:
    monitor = MonitorState(problem="", groups=1, adopted=0, without_room=0, elsewhere=2, errors=0)
    published.report = tick = report(time.monotonic_ns(), monitor=monitor)
    assert tick.cost is not None
    status = json.loads(get(port, "/statusz")[1])
    records = (status["agent"], status["resctrl_group"], status["resctrl_monitor"])
    wanted = [asdict(tick.cost), asdict(tick.control_group), asdict(monitor)]
    assert list(records) == json.loads(json.dumps(wanted))
    assert status["service_level"] == [asdict(each) for each in tick.services]


def test_metrics_are_in_base_units_and_parse(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns())
    families = {f.name: f for f in text_string_to_metric_families(get(port, "/metrics")[1])}
    values = {name: [s.value for s in family.samples] for name, family in families.items()}
    assert values["sweetpoint_indicator_value"] == [0.003]
    assert values["sweetpoint_indicator_sweet_point"] == [0.002]
    assert values["sweetpoint_channel_demand_ratio"] == [0.2]
    assert values["sweetpoint_rung_part_ratio"] == [0.2]
    assert values["sweetpoint_quota_applied_cpus"] == [0.5]
    assert values["sweetpoint_sched_idle"] == [1]
    assert values["sweetpoint_best_effort_granted_cpus"] == [1.5]
    assert values["sweetpoint_tick_overruns"] == [1]
    # None means "not measurable": there is no sample, rather than one of 0.
    assert values["sweetpoint_loop_deviation_filtered"] == []
    assert values["sweetpoint_best_effort_ceiling_cpus"] == []


def test_only_measured_values_have_series(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns(), probe_problems={"net": "no cgroup2 tree"})
    lines = get(port, "/metrics")[1].splitlines()
    found = [
        line.removeprefix("sweetpoint_")
        for line in lines
        if line.startswith(("sweetpoint_workload_", "sweetpoint_host_", "sweetpoint_probe_up"))
    ]
    assert found == [
        'workload_info{class="latency-sensitive",profile="nginx",service="web",workload="web"} 1.0',
        'workload_info{class="best-effort",profile="",service="job",workload="job"} 1.0',
        'workload_network_bytes_total{direction="transmit",workload="web"} 0.0',
        'workload_network_bytes_total{direction="receive",workload="web"} 300.0',
        'workload_network_packets_total{direction="transmit",workload="web"} 0.0',
        'workload_network_packets_total{direction="receive",workload="web"} 3.0',
        'workload_network_source{source="netns",workload="web"} 1.0',
        'workload_pressure_seconds_total{resource="cpu",workload="web"} 2.0',
        'host_pressure_seconds_total{resource="io"} 0.5',
        'probe_up{probe="net",reason="no cgroup2 tree"} 0.0',
        'probe_up{probe="sched",reason=""} 1.0',
    ]
    # This probe is optional.
    assert get(port, "/readyz")[0] == 200


def test_service_levels_are_in_base_units(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns())
    found = [
        line.removeprefix("sweetpoint_service_level_")
        for line in get(port, "/metrics")[1].splitlines()
        if line.startswith("sweetpoint_service_level_")
    ]
    assert found == [
        'seconds{service="web",source="json"} 0.0125',
        'value{service="queue",source="push"} 17.0',
        'age_seconds{service="web",source="json"} 1.0',
        'errors_total{reason="status",service="web",source="json"} 2.0',
        'refused_pushes_total{reason="forbidden"} 3.0',
    ]
    status = json.loads(get(port, "/statusz")[1])
    assert status["service_level"][0]["problem"] == "HTTP status 500"


def test_knobs_have_the_values_that_were_read_back(port: int, published: PublishedState) -> None:
    group = Target(TargetKind.RESCTRL_GROUP, "/sys/fs/resctrl", 77, "sweetpoint-batch")
    knobs = (
        KnobReading(group, Knob.MBA, KnobValue("0=50;1=70")),
        KnobReading(group, Knob.LLC_WAYS, KnobValue("0=f;1=3")),
        KnobReading(JOB, Knob.MEMORY_HIGH, KnobValue("1048576")),
        KnobReading(JOB, Knob.IO_WEIGHT, KnobValue("25")),
        KnobReading(JOB, Knob.SCHED_IDLE, KnobValue("0 1024")),
    )
    rung = RungReport(Channel.CACHE, Knob.MBA, 0.5, True, "memory bandwidth 50%")
    now_ns = time.monotonic_ns()
    published.report = report(now_ns, knobs=knobs, plan=Plan(time_ns=now_ns, rungs=(rung,)))
    found = [
        line.removeprefix("sweetpoint_")
        for line in get(port, "/metrics")[1].splitlines()
        if line.startswith(("sweetpoint_memory_", "sweetpoint_cache_ways", "sweetpoint_io"))
        or line.startswith(("sweetpoint_rung", "sweetpoint_sched_idle{"))
    ]
    assert found == [
        'sched_idle{knob="cpu.idle",workload="job"} 0.0',
        'memory_high_bytes{knob="memory.high",workload="job"} 1.048576e+06',
        'io_weight{knob="io.weight",workload="job"} 25.0',
        'memory_bandwidth_limit{domain="0",group="sweetpoint-batch"} 50.0',
        'memory_bandwidth_limit{domain="1",group="sweetpoint-batch"} 70.0',
        'cache_ways{domain="0",group="sweetpoint-batch"} 4.0',
        'cache_ways{domain="1",group="sweetpoint-batch"} 2.0',
        'rung_part_ratio{channel="cache",knob="resctrl.mb"} 0.5',
        'rung_usable{channel="cache",knob="resctrl.mb"} 1.0',
    ]


def test_blame_has_victim_and_culprit_of_the_top_pairs(
    port: int, published: PublishedState
) -> None:
    web, job, ended = CgroupId("cpu", 6), CgroupId("cpu", 7), CgroupId("cpu", 99)
    pairs = [
        Blame(web, job, True, 3 * 10**9),
        Blame(web, None, True, 2 * 10**9),
        Blame(web, None, False, 10**9),
        Blame(ended, job, True, 4 * 10**9),  # ended since the last scan
    ]
    pairs += [Blame(web, CgroupId("cpu", 1000 + each), True, each) for each in range(100)]
    published.report = report(time.monotonic_ns(), blame=tuple(pairs))
    found = [
        line.removeprefix("sweetpoint_blame_wait_seconds_total")
        for line in get(port, "/metrics")[1].splitlines()
        if line.startswith("sweetpoint_blame_")
    ]
    assert found[:3] == [
        '{culprit="job",victim="web"} 3.0',
        '{culprit="system",victim="web"} 2.0',
        '{culprit="unknown",victim="web"} 1.0',
    ]
    assert len(found) == 49


def test_counters_have_series_from_the_start(port: int, published: PublishedState) -> None:
    published.report = report(
        time.monotonic_ns(),
        config_problem="config.yaml:3: unknown key",
        overwritten={Knob.SCHED_IDLE: 2},
        routine={Knob.SCHED_IDLE: 7},
    )
    published.writes[Knob.CPU_QUOTA, "applied"] = 4
    text = get(port, "/metrics")[1]
    assert 'sweetpoint_config_reloads_total{result="failed"} 0.0' in text
    assert 'sweetpoint_knob_writes_total{knob="cpu.quota",result="applied"} 4.0' in text
    assert 'sweetpoint_knob_writes_total{knob="cpu.quota",result="foreign"} 0.0' in text
    assert 'sweetpoint_knob_overwrites_total{knob="cpu.quota"} 0.0' in text
    assert 'sweetpoint_knob_overwrites_total{knob="cpu.idle"} 2.0' in text
    assert 'sweetpoint_knob_routine_overwrites_total{knob="cpu.quota"} 0.0' in text
    assert 'sweetpoint_knob_routine_overwrites_total{knob="cpu.idle"} 7.0' in text
    assert "sweetpoint_config_problem 1.0" in text


def test_series_end_with_their_objects(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns())
    assert 'workload="job"' in get(port, "/metrics")[1]
    published.report = report(time.monotonic_ns(), workloads=(), samples=(), knobs=())
    assert 'workload="job"' not in get(port, "/metrics")[1]


def test_a_silent_client_does_not_delay_others(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns())
    with socket.create_connection(("127.0.0.1", port)):
        assert get(port, "/healthz")[0] == 200


def test_stalled_connections_are_closed_for_new_ones(
    port: int, published: PublishedState, capfd: pytest.CaptureFixture[str]
) -> None:
    stalled = [socket.create_connection(("127.0.0.1", port), timeout=4) for _ in range(70)]
    published.report = report(time.monotonic_ns())
    assert get(port, "/healthz")[0] == 200
    assert (
        sum(thread.name.endswith("(process_request_thread)") for thread in threading.enumerate())
        <= 64
    )
    # Long before the time-out.
    assert stalled[0].recv(1) == b""
    for each in stalled:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.close()  # with a reset, which must not cause a traceback
    published.report = report(time.monotonic_ns())
    assert get(port, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def test_pages_are_made_one_at_a_time_with_pauses() -> None:
    now_s, cpu_s, cpu_each = 100.0, 0.0, 0.04

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def page() -> float:
        nonlocal now_s, cpu_s
        cpu_s += cpu_each
        now_s += 0.05  # the wait for a tick takes no CPU time
        return now_s

    pacer = Pacer(lambda: now_s, lambda: cpu_s, sleep)
    ends = [pacer.make(page) for _ in range(3)]
    assert ends == pytest.approx([100.05, 100.05 + 0.36 + 0.05, 100.05 + 2 * (0.36 + 0.05)])
    cpu_each = 0.5
    assert pacer.make(page) == pytest.approx(100.05 + 3 * (0.36 + 0.05))
    assert pacer.make(page) == pytest.approx(100.05 + 3 * (0.36 + 0.05) + 1.0 + 0.05)


def test_requests_share_a_page_for_a_second_and_longer_while_no_other_can_be_made() -> None:
    now_s, cpu_each, made = 100.0, 0.04, 0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def page() -> int:
        nonlocal made
        made += 1
        return made

    cpu_s = iter(each * cpu_each for each in range(100))
    pacer: Pacer[int] = Pacer(lambda: now_s, lambda: next(cpu_s), sleep)
    assert pacer.make(page, "a") == 1
    assert (pacer.make(page, "a"), now_s) == (1, 100.0)
    assert (pacer.make(page, "b"), now_s) == (2, pytest.approx(100.36))
    now_s = 101.1
    assert pacer.make(page, "a") == 3
    # In the pause after it, the other one is too old to be fresh, and given again all the same.
    now_s = 101.4
    assert (pacer.make(page, "b"), now_s) == (2, 101.4)
    now_s = 101.5
    assert pacer.make(page, "b") == 4
    now_s = 107.0
    assert pacer.make(page, "a") == 5
    # One that is too old even for that is worth the wait.
    assert (pacer.make(page, "b"), now_s) == (6, pytest.approx(107.36))
    assert pacer.make(page) == 7


def test_pages_of_large_nodes_are_shared(port: int, published: PublishedState) -> None:
    def count(workloads: int) -> int:
        record = Workload("w", CgroupId("cpu", 1), "/w", QosClass.BE, "w", "")
        published.report = report(time.monotonic_ns(), workloads=(record,) * workloads)
        return len(json.loads(get(port, "/statusz")[1])["workloads"])

    assert [count(3), count(4), count(300), count(300)] == [3, 4, 300, 300]
    assert count(400) == 300
    assert count(5) == 5


def test_requests_beyond_the_maximum_are_rejected_at_once() -> None:
    pacer: Pacer[bool] = Pacer()
    go = threading.Event()
    made: list[bool | None] = []
    threads = [
        threading.Thread(target=lambda: made.append(pacer.make(lambda: go.wait(60))))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    eventually("the others are rejected", 30, lambda: made == [None] * 16)
    go.set()
    for thread in threads:
        thread.join()
    assert made == [None] * 16 + [True] * 4


@pytest.mark.parametrize(
    ("page", "cpus"), [("/healthz", 0.1), ("/readyz", 0.1), ("/nothing", 0.1), ("/metrics", 0.2)]
)
def test_a_flood_takes_a_bounded_part_of_a_cpu(
    port: int, server: StatusServer, published: PublishedState, page: str, cpus: float
) -> None:
    published.report = report(time.monotonic_ns())
    end_s = time.monotonic() + 1.5

    def flood() -> None:
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError):
                get(port, page)

    began_s, before_s = time.monotonic(), server.cpu_s
    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert get(port, "/healthz")[0] == 200
    for thread in threads:
        thread.join()
    # The last pages are followed by their pauses later.
    assert 0 < server.cpu_s - before_s < cpus * (time.monotonic() - began_s) + 0.1


def test_a_client_that_drips_bytes_is_cut(
    port: int, published: PublishedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.telemetry.http_limits._DEADLINE_S", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=0.05) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX: ")

        def cut() -> bool:
            try:
                client.sendall(b"y")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        eventually("the end of the connection", 4, cut)


def test_a_long_head_is_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\n" + b"X: %s\r\n" % (b"y" * 9000) * 2)
        assert client.recv(100).startswith(b"HTTP/1.0 431 ")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"GET /" + b"y" * 16380)
        assert client.recv(100) == b""


def test_another_host_is_refused_above_its_rate(
    port: int, published: PublishedState, caplog: pytest.LogCaptureFixture
) -> None:
    published.report = report(time.monotonic_ns())

    def ask(source: str) -> bool:
        try:
            with socket.create_connection(
                ("127.0.0.1", port), timeout=5, source_address=(source, 0)
            ) as client:
                client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
                return client.recv(20).startswith(b"HTTP/1.0 200")
        except OSError:
            return False

    # An address that differs from that of the server stands for another host.
    served = [ask("127.0.0.2") for _ in range(300)]
    assert served[:40] == [True] * 40
    assert False in served
    assert ask("127.0.0.1")
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith("http: too many requests from 127.0.0.2, refused")


def test_names_that_are_not_utf8_are_in_the_pages(port: int, published: PublishedState) -> None:
    first = report(time.monotonic_ns())
    web = first.workloads[0]._replace(path="/web\udcff")
    published.report = report(time.monotonic_ns(), workloads=(web, *first.workloads[1:]))
    assert json.loads(get(port, "/statusz")[1])["workloads"][0]["path"] == "/web\\udcff"


def test_a_taken_port_is_named_and_tried_again_until_it_is_free(
    published: PublishedState, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.telemetry.http._RETRY_S", 0.01)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = StatusServer(published, ("127.0.0.1", port), healthy_ns=10**9)
        eventually("more attempts", 30, lambda: published.http_listen_failures >= 3)
        errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len(errors) == 1
        assert errors[0].startswith(f"http: cannot listen on 127.0.0.1:{port}: Address already in")
    published.report = report(time.monotonic_ns())
    try:
        eventually("the pages", 30, lambda: _answers(port))
        failures = json.loads(get(port, "/statusz")[1])["http_listen_failures"]
        assert failures == published.http_listen_failures >= 3
    finally:
        server.close()
    assert not _answers(port)


def test_a_server_that_never_listened_can_be_closed(published: PublishedState) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = StatusServer(published, taken.getsockname()[:2], healthy_ns=10**9)
        server.close()
    time.sleep(0.05)
    assert "http" not in {thread.name for thread in threading.enumerate()}


def _answers(port: int) -> bool:
    try:
        return get(port, "/healthz")[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize("page", ["/metrics", "/statusz"])
def test_a_page_waits_for_the_end_of_a_tick_but_not_of_one_that_hangs(
    port: int, published: PublishedState, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.telemetry.report._YIELD_S", 4)
    published.report = report(time.monotonic_ns())
    published.between_ticks.clear()
    over = threading.Timer(0.05, published.between_ticks.set)
    over.start()
    assert get(port, page)[0] == 200
    assert published.between_ticks.is_set()
    over.join()
    monkeypatch.setattr("controller.telemetry.report._YIELD_S", 0.01)
    published.between_ticks.clear()
    assert get(port, page)[0] == 200
