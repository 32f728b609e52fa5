# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shares of a link of 200 Mbit/s, by the counters of the link and by those of iperf3."""

from collections.abc import Iterator
import time

import pytest

from controller.core.model import Knob
from tests.kernel.links import GUARANTEED_MBIT, LINK_MBIT, MBIT, change
from tests.kernel.shaped import BEST_EFFORT, LIMITED, SENSITIVE, Shaped, shaped_host
from tests.kernel.wire import Flow

pytestmark = pytest.mark.kernel

# 1,448 bytes of TCP payload in 1,514 bytes of Ethernet.
PAYLOAD = 1448 / 1514
UDP = ("-u", "-l", "1400")


@pytest.fixture(scope="module")
def shaped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shaped]:
    with shaped_host(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.mark.parametrize("to_wire", [True, False])
@pytest.mark.parametrize("where", ["pods", "host network"])
def test_shares(shaped: Shaped, where: str, to_wire: bool) -> None:
    """The service gets its guaranteed rate, best-effort work the rest."""
    host = shaped.host
    flows = {}
    for name, number in (("batch", BEST_EFFORT), ("web", SENSITIVE)):
        flows[number] = Flow(
            host,
            host.pods[name] if where == "pods" else host.name,
            seconds=2,
            to_wire=to_wire,
            streams=4 if number == BEST_EFFORT else 1,
            mbit=None if number == BEST_EFFORT else GUARANTEED_MBIT * PAYLOAD,
            cgroup=None if where == "pods" else shaped.cgroups[name],
        )
    time.sleep(1.0)
    rates = shaped.rates(1.6)
    service, batch = (rates[not to_wire, number] for number in (SENSITIVE, BEST_EFFORT))
    by_iperf3 = {number: flow.mbit() / PAYLOAD for number, flow in flows.items()}
    print(f"on the wire: {service:.1f} and {batch:.1f} Mbit/s; by iperf3: {by_iperf3}")
    assert service >= 0.95 * GUARANTEED_MBIT
    assert batch >= 0.9 * (LINK_MBIT - service)
    assert service + batch <= 1.02 * LINK_MBIT
    # The second that iperf3 measures begins at another time.
    assert by_iperf3[SENSITIVE] == pytest.approx(service, rel=0.05)
    assert by_iperf3[BEST_EFFORT] == pytest.approx(batch, rel=0.1)


def test_a_changed_ceiling_holds_within_a_second(shaped: Shaped) -> None:
    host = shaped.host
    flows = [
        Flow(host, host.pods["batch"], seconds=3, to_wire=to_wire, mbit=150, extra=UDP)
        for to_wire in (True, False)
    ]
    time.sleep(0.5)
    measured = []
    for egress, ingress in ((180, 190), (40, 20), (5, 8), (80, 100)):
        value = f"{egress * MBIT} {ingress * MBIT}"
        assert change(shaped.executor, shaped.link, Knob.TC_CEILING, value).applied == value
        time.sleep(0.3)
        rates = shaped.rates(0.4)
        measured.append((rates[False, BEST_EFFORT], rates[True, BEST_EFFORT]))
    change(shaped.executor, shaped.link, Knob.TC_CEILING, f"{200 * MBIT} {200 * MBIT}")
    for flow in flows:
        flow.end()
    print(measured)
    assert min(measured[0]) > 120
    assert measured[1] == pytest.approx((40, 20), rel=0.1)
    # A ceiling below the guaranteed rate of best-effort work: the ceiling counts.
    assert measured[2] == pytest.approx((5, 8), rel=0.15)
    assert measured[3] == pytest.approx((80, 100), rel=0.1)


def test_a_limit_below_the_tier(shaped: Shaped) -> None:
    """Best-effort work with a limit of its own gets that, and its tier gets the rest."""
    host = shaped.host
    flows = [
        Flow(host, host.name, seconds=1, mbit=150, cgroup=shaped.cgroups[name], extra=UDP)
        for name in ("limited", "batch")
    ]
    time.sleep(0.7)
    rates = shaped.rates(1.0)
    for flow in flows:
        flow.end()
    print({number: round(rates[False, number], 1) for number in (BEST_EFFORT, LIMITED)})
    assert rates[False, LIMITED] == pytest.approx(30, rel=0.1)
    assert rates[False, BEST_EFFORT] > 120
