# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shares of a link over half a minute, and filters for as many pods as a node has."""

import contextlib
from pathlib import Path
import socket
import time

import pytest

from actuators.tc.netlink import network_namespace
from actuators.tc.shape import CLASSIFIED
from actuators.tc.tree import Programs
from controller.core.model import Knob, Target, TargetKind
from tests.kernel.links import GUARANTEED_MBIT, LINK_MBIT, change, link_executor, load_programs
from tests.kernel.netns import batch, entered
from tests.kernel.shaped import BEST_EFFORT, SENSITIVE, shaped_host
from tests.kernel.wire import Flow, Host, dump

pytestmark = pytest.mark.kernel

# 1,448 bytes of TCP payload in 1,514 bytes of Ethernet.
PAYLOAD = 1448 / 1514


@pytest.mark.soak
@pytest.mark.timed
@pytest.mark.parametrize("to_wire", [True, False])
@pytest.mark.parametrize("where", ["pods", "host network"])
def test_shares_over_half_a_minute(tmp_path: Path, where: str, to_wire: bool) -> None:
    """The service gets its guaranteed rate, best-effort the rest."""
    with shaped_host(tmp_path) as shaped, contextlib.ExitStack() as stack:
        host = shaped.host
        flows = [
            stack.enter_context(
                Flow(
                    host,
                    host.pods[name] if where == "pods" else host.name,
                    seconds=32,
                    to_wire=to_wire,
                    streams=streams,
                    mbit=mbit,
                    cgroup=None if where == "pods" else shaped.cgroups[name],
                )
            )
            for name, streams, mbit in (
                ("batch", 4, None),
                ("web", 1, GUARANTEED_MBIT * PAYLOAD),
            )
        ]
        time.sleep(1.5)
        rates = shaped.rates(30)
        batch_by_iperf3, service_by_iperf3 = (flow.mbit() / PAYLOAD for flow in flows)
    service, batch = (rates[not to_wire, number] for number in (SENSITIVE, BEST_EFFORT))
    by_iperf3 = f"{service_by_iperf3:.2f} {batch_by_iperf3:.2f}"
    print(f"\nwire {service:.2f} {batch:.2f}, iperf3 {by_iperf3} Mbit/s")
    assert service >= 0.95 * GUARANTEED_MBIT
    assert batch >= 0.9 * (LINK_MBIT - service)
    assert service_by_iperf3 == pytest.approx(service, rel=0.02)
    assert batch_by_iperf3 == pytest.approx(batch, rel=0.04)


@pytest.mark.thorough
def test_many_pods(tmp_path: Path) -> None:
    place_and_restore(tmp_path, 110)


@pytest.mark.soak
@pytest.mark.timed
@pytest.mark.parametrize("pods", [110, 500])
def test_the_time_to_restore_many_pods(tmp_path: Path, pods: int) -> None:
    assert place_and_restore(tmp_path, pods) < 2 * pods / 110


def place_and_restore(state_dir: Path, pods: int) -> float:
    """Place filters at all veths; a new executor removes them. Return its seconds."""
    with Host() as host, entered(host.name), contextlib.closing(load_programs()) as classifier:
        batch(
            host.name,
            [f"link add p{n} type veth peer q{n} netns {host.wire}" for n in range(pods)],
        )
        before = dump(host)
        executor = link_executor(state_dir, Programs(**classifier.program_fds))
        scope = network_namespace()
        targets = [
            Target(TargetKind.VETH, scope, socket.if_nametoindex(f"p{n}"), f"p{n}")
            for n in range(pods)
        ]
        started = time.monotonic()
        for target in targets:
            assert change(executor, target, Knob.TC_MARK, CLASSIFIED).applied == CLASSIFIED
        placed_s = time.monotonic() - started
        assert "\n".join(dump(host)).count("sweetpoint_mark") == pods
        started = time.monotonic()
        report = link_executor(state_dir).restore_all()
        restored_s = time.monotonic() - started
        print(f"\n{pods} pods: filters placed in {placed_s:.2f} s, restored in {restored_s:.2f} s")
        assert report.clean and len(report.results) == pods
        assert dump(host) == before
        return restored_s
