# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the HTTP pages say, before the first tick and after it."""

from base64 import b64encode
from dataclasses import asdict
import hashlib
import http.client
import json
from pathlib import Path
import re
import time

from prometheus_client.parser import text_string_to_metric_families
import pytest

from controller.core.decision import (
    Plan,
    RungReport,
)
from controller.core.in_force import InForce
from controller.core.model import (
    Blame,
    CgroupId,
    Channel,
    Knob,
    KnobReading,
    KnobValue,
    Target,
    TargetKind,
)
from controller.core.units import NS_PER_SEC
from controller.demo.programs import free_port
from controller.host.sources import Source, SourceProblem, SourceState
from controller.reconcilers.resctrl.monitored import MonitorState
from controller.telemetry.http import StatusServer
from controller.telemetry.report import PublishedState
from tests.support.http.status_pages import get
from tests.support.reports import JOB, report
from tests.support.waiting import DEADLINE_S


def http_headers(port: int, page: str) -> http.client.HTTPMessage:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
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
    published.report = report(time.monotonic_ns() - round(DEADLINE_S + 1) * NS_PER_SEC)
    assert get(port, "/healthz")[0] == 503


LOST = SourceProblem(Source.PODS, SourceState.DEGRADED, "the list is old\ud800", 1.5)
UNSEEN = SourceProblem(Source.PROBES, SourceState.UNSEEN, "sched is off: no BTF", 2.0)


def test_an_agent_that_lost_a_source_is_ready_and_says_so(
    port: int, published: PublishedState
) -> None:
    published.report = report(time.monotonic_ns(), degraded=(LOST,))
    assert get(port, "/readyz") == (200, "degraded: pods: the list is old\\ud800\n")
    status = json.loads(get(port, "/statusz")[1])
    (found,) = status["degraded"]
    assert (found["source"], found["state"], found["since_s"]) == ("pods", "degraded", 1.5)


def test_an_agent_that_never_had_a_source_is_not_ready(
    port: int, published: PublishedState
) -> None:
    published.report = report(time.monotonic_ns(), degraded=(LOST, UNSEEN))
    status, text = get(port, "/readyz")
    assert status == 503
    assert text.splitlines()[1] == "not ready: probes: sched is off: no BTF"
    published.report = report(time.monotonic_ns())
    assert get(port, "/readyz") == (200, "ready\n")


def test_with_a_token_readyz_has_no_names(published: PublishedState, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x" * 16)
    port = free_port()
    address = ("127.0.0.1", port)
    server = StatusServer(published, address, healthy_ns=10**9, token_file=token)
    try:
        published.report = report(time.monotonic_ns(), degraded=(LOST, UNSEEN))
        expected = "not ready: pods: see /statusz\nnot ready: probes: see /statusz\n"
        assert get(port, "/readyz") == (503, expected)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("path", "asks"),
    [("/", True), ("/metrics", True), ("/statusz", True), ("/healthz", False), ("/readyz", False)],
)
def test_who_reads_the_state_gets_a_tick_and_a_probe_of_kubelet_does_not(
    port: int, published: PublishedState, path: str, asks: bool
) -> None:
    published.report = report(time.monotonic_ns())
    assert get(port, path)[0] == 200
    assert published.is_asked is asks


def test_each_source_has_a_series(port: int, published: PublishedState) -> None:
    published.report = report(time.monotonic_ns(), degraded=(LOST,))
    found = [
        line.removeprefix("sweetpoint_source_degraded")
        for line in get(port, "/metrics")[1].splitlines()
        if line.startswith("sweetpoint_source_degraded")
    ]
    assert found == [
        '{source="pods"} 1.0',
        '{source="probes"} 0.0',
        '{source="profiles"} 0.0',
        '{source="permissions"} 0.0',
        '{source="clock"} 0.0',
    ]


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
    assert values["sweetpoint_best_effort_granted_cpus"] == [0.5]
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
    published.report = report(
        time.monotonic_ns(), workloads=(), samples=(), knobs=(), in_force=InForce()
    )
    assert 'workload="job"' not in get(port, "/metrics")[1]


def test_names_that_are_not_utf8_are_in_the_pages(port: int, published: PublishedState) -> None:
    first = report(time.monotonic_ns())
    web = first.workloads[0]._replace(path="/web\udcff")
    published.report = report(time.monotonic_ns(), workloads=(web, *first.workloads[1:]))
    assert json.loads(get(port, "/statusz")[1])["workloads"][0]["path"] == "/web\\udcff"
