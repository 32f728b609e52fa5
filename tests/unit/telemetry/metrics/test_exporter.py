# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The page of metrics, checked by Prometheus' own tool."""

import subprocess
import time

from controller.core.model import Channel, Knob
from controller.host.pause_file import PauseEntry, PauseState
from controller.reconcilers.resctrl.monitored import MonitorState
from controller.telemetry.metrics.exporter import Exporter
from controller.telemetry.report import PublishedState
from tests.support.needs import needs_program
from tests.support.reports import report


@needs_program("promtool")
def test_promtool_accepts_the_page() -> None:
    published = PublishedState()
    published.durations_ns.extend([1_000_000, 2_000_000, 9_000_000])
    published.lateness_ns.extend([100_000, 50_000, 40_000_000])
    published.writes[Knob.CPU_QUOTA, "applied"] = 4
    published.decisions[Channel.CPU, "squeeze"] = 3
    monitor = MonitorState(problem="", groups=1, adopted=0, without_room=0, elsewhere=2, errors=0)
    first = report(time.monotonic_ns())
    web, *others = first.workloads
    published.report = report(
        time.monotonic_ns(),
        monitor=monitor,
        probe_problems={"net": "no cgroup2 tree"},
        pauses=PauseState(
            entries=(("file", PauseEntry("service", '\udcff "\n', 1.8e9)),),
            problems=(("node", "no time"),),
        ),
        workloads=(web._replace(name='\udcff\\ "\n'), *others),
    )
    page = Exporter(published).render()
    assert b'sweetpoint_paused{name="\\\\udcff \\"\\n",scope="service",source="file"} 1.0' in page
    assert b'sweetpoint_pause_problem{reason="no time",source="node"} 1.0' in page
    assert b'sweetpoint_tick_duration_recent_seconds{percentile="50"} 0.002' in page
    assert b'sweetpoint_tick_late_recent_seconds{percentile="50"} 0.0001' in page
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
