# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the real agent and answers the queries of dashboard and rules.

The agent squeezes a CPU-bound load beside a service, so most series exist.
"""

from collections.abc import Iterator
import contextlib
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.deploy.prometheus import Prometheus
from tests.deploy.queries import NODE, Query, dashboard_queries, rule_queries, variables
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.support.needs import needs_program
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough, needs_program("prometheus")]

_NO_HARDWARE = "needs resctrl or hardware counters, which this host may not have"
_NO_V2 = "needs the memory or io controller on cgroup v2"
_NO_KUBERNETES = "no Kubernetes here"
_NO_LINK = "no link is shaped"
_NOTHING = "nothing of the kind happened"

# Panels, or single queries of a panel, that may be empty, and the reason.
MAY_BE_EMPTY = {
    "Other indicators": "the profile has no indicator that is neither time nor share",
    "Shares": "the profile has no indicator that is a share",
    "Services' own figures": "the service has no source of its own",
    "Which knobs can be moved now": "the series are for other channels, and the test has only cpu",
    "Applied: memory.high, the ten smallest": _NO_V2,
    "Applied: io.weight, the ten smallest": _NO_V2,
    "Pressure of services": "the kernel may have no PSI, or no cgroup2 tree with the service",
    "Pressure of nodes": "the kernel may have no PSI",
    "Network traffic of workloads": "no workload sends, and there may be no cgroup2 tree",
    "Applied: sched-idle and cookies C": "needs core scheduling",
    "Evictions by reason and result": _NOTHING,
    "Foreign writes to knobs": _NOTHING,
    "CPU time of the probes' programs": "kernel.bpf_stats_enabled is 0",
    "Time since the last message of the API server": _NO_KUBERNETES,
    "Pods by class and source of the class": _NO_KUBERNETES,
    "Pods": _NO_KUBERNETES,
    "Failed requests to the API server": _NO_KUBERNETES,
    "Offered to best-effort pods: CPU": _NO_KUBERNETES,
    "Offered to best-effort pods: memory": _NO_KUBERNETES,
    "State of the offered resources": _NO_KUBERNETES,
    "Profiles of the ConfigMap": _NO_KUBERNETES,
    "Knobs left to other agents": _NO_KUBERNETES,
    "Pods with refused labels": _NO_KUBERNETES,
    "Links: traffic by tier": _NO_LINK,
    "Links: backlog": _NO_LINK,
    "Links: packets dropped": _NO_LINK,
    "Links that are not shaped": _NO_LINK,
    "Cache ways of best-effort work": _NO_HARDWARE,
    "Memory bandwidth limit of best-effort work": _NO_HARDWARE,
    "Last-level cache occupancy": _NO_HARDWARE,
    "Memory bandwidth used": _NO_HARDWARE,
    "Control group of best-effort work": _NO_HARDWARE,
    "Cores shared with services": "needs SMT",
    "Cycles per instruction": _NO_HARDWARE,
}


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    outweigh(site.root, 200)  # what else runs on this machine must not count
    # A trial would let go of the squeeze beside other load.
    site.write("profiles: [tight.yaml]\nlaw: {verify_squeeze: false}\n")
    (site.home / "tight.yaml").write_text(
        "name: nginx\ndescription: test\nsched_idle: false\n"
        "indicators:\n  runq_p99: {sweet_point: 2ms}\n"
    )
    return site


@pytest.fixture
def prometheus(site: Site) -> Iterator[Prometheus]:
    agent = {"targets": [f"127.0.0.1:{site.port}"]}
    job = {"job_name": "sweetpoint", "static_configs": [agent]}
    server = Prometheus(site.home, {"scrape_configs": [job]})
    try:
        yield server
    finally:
        server.close()


def test_every_query_is_answered_and_every_panel_has_data(
    site: Site, prometheus: Prometheus
) -> None:
    wanted = [Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)]
    another = [Load(site.batch[1], "hog", CPU)]
    with (
        loads(wanted) as running,
        loads(another) as late,
        AgentRun(site) as agent,
    ):
        agent.ready()
        eventually("a scrape", lambda: prometheus.has("sweetpoint_ticks_total"))
        eventually(
            "a first measurement of the cost",
            lambda: prometheus.query("sweetpoint_agent_used_cpus"),
        )
        running.start()
        quota = "sweetpoint_quota_applied_cpus"
        eventually("a squeeze that was scraped", lambda: prometheus.query(quota))
        late.start()
        # The counter of writes appears with the first write, so a rate needs a second one.
        written = f"{quota} and on () sum(rate(sweetpoint_knob_writes_total[10s])) > 0"
        eventually("another write", lambda: prometheus.query(written))
        problems: list[str] = []

        def complete() -> bool:
            problems[:] = [
                *_unanswered(prometheus, [*dashboard_queries(NODE), *rule_queries()]),
                *_empty(prometheus, dashboard_queries(NODE)),
                *_unfilled(prometheus),
                *_broken_rules(prometheus),
            ]
            return not problems

        # Rates need several scrapes with the same series.
        with contextlib.suppress(AssertionError):
            eventually("data for every query", complete)
        assert problems == []
        assert agent.stop() == 0
    assert list(_outdated(dashboard_queries(NODE))) == []
    # For example, series that are twice in one scrape.
    assert "ingest" not in prometheus.log


def _unanswered(server: Prometheus, queries: list[Query]) -> Iterator[str]:
    for query in queries:
        answer = server.query(query.expression)
        if isinstance(answer, str):
            yield f"{query.place}: {answer}"


def _outdated(queries: list[Query]) -> Iterator[str]:
    places = {query.place for query in queries} | {query.place[:-2] for query in queries}
    for place in MAY_BE_EMPTY.keys() - places:
        yield f"MAY_BE_EMPTY names a panel that does not exist: {place}"


def _empty(server: Prometheus, queries: list[Query]) -> Iterator[str]:
    for place, expression in queries:
        allowed = place in MAY_BE_EMPTY or place[:-2] in MAY_BE_EMPTY
        if not allowed and not server.query(expression):
            yield f"{place}: no data: {expression}"


def _unfilled(server: Prometheus) -> Iterator[str]:
    for label, query in variables(NODE):
        series = server.query(query.expression)
        # Without the relabelling of a cluster these labels do not exist.
        if label not in ("cluster", "namespace") and not all(label in s["metric"] for s in series):
            yield f"variable {query.place}: no {label} in {query.expression}"
        if not series:
            yield f"variable {query.place}: no series"


def _broken_rules(server: Prometheus) -> Iterator[str]:
    groups = server.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    if len(rules) != len(rule_queries()):
        yield f"{len(rules)} rules instead of {len(rule_queries())}"
    for rule in rules:
        if rule["health"] != "ok":
            yield f"{rule['name']}: {rule['health']}: {rule.get('lastError')}"
