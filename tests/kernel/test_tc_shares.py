# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shares of a link of 200 Mbit/s, by the counters of the link and by those of iperf3.

A token bucket holds a few milliseconds. While the hypervisor holds the CPU on which packets are
due, more than that is lost, so lower bounds hold for the time that was left.
"""

from collections.abc import Iterator
import time

import pytest

from controller.core.model import Knob
from tests.kernel.links import GUARANTEED_MBIT, LINK_MBIT, MBIT, change
from tests.kernel.shaped import BEST_EFFORT, LIMITED, SENSITIVE, Shaped, shaped_host
from tests.kernel.steal import Steal
from tests.kernel.wire import Flow

pytestmark = pytest.mark.kernel

# 1,448 bytes of TCP payload in 1,514 bytes of Ethernet.
PAYLOAD = 1448 / 1514
UDP = ("-u", "-l", "1400")


def assert_near(mbit: float, wanted_mbit: float, rel: float, left_ratio: float) -> None:
    assert (1 - rel) * left_ratio * wanted_mbit <= mbit <= (1 + rel) * wanted_mbit


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
    steal = Steal()
    rates = shaped.rates(1.6)
    left = steal.left_ratio()
    service, batch = (rates[not to_wire, number] for number in (SENSITIVE, BEST_EFFORT))
    by_iperf3 = {number: flow.mbit() / PAYLOAD for number, flow in flows.items()}
    print(f"on the wire: {service:.1f} and {batch:.1f} Mbit/s; by iperf3: {by_iperf3}")
    print(f"{left:.1%} of the time left")
    assert service >= 0.95 * left * GUARANTEED_MBIT
    assert batch >= 0.9 * (left * LINK_MBIT - service)
    assert service + batch <= 1.02 * LINK_MBIT
    # The second that iperf3 measures begins at another time.
    left = min(left, steal.left_ratio())
    assert by_iperf3[SENSITIVE] == pytest.approx(service, rel=0.05 + 1 - left)
    assert by_iperf3[BEST_EFFORT] == pytest.approx(batch, rel=0.1 + 1 - left)


def test_a_changed_ceiling_holds_within_a_second(shaped: Shaped) -> None:
    host = shaped.host
    flows = [
        Flow(host, host.pods["batch"], seconds=3, to_wire=to_wire, mbit=150, extra=UDP)
        for to_wire in (True, False)
    ]
    time.sleep(0.5)
    measured = []
    # A ceiling below the guaranteed rate of best-effort work: the ceiling counts.
    for egress, ingress in ((180, 190), (40, 20), (5, 8), (80, 100)):
        value = f"{egress * MBIT} {ingress * MBIT}"
        assert change(shaped.executor, shaped.link, Knob.TC_CEILING, value).applied == value
        time.sleep(0.3)
        steal = Steal()
        rates = shaped.rates(0.4)
        measured.append((rates[False, BEST_EFFORT], rates[True, BEST_EFFORT], steal.left_ratio()))
    change(shaped.executor, shaped.link, Knob.TC_CEILING, f"{200 * MBIT} {200 * MBIT}")
    for flow in flows:
        flow.end()
    print(measured)
    *high, left = measured[0]
    assert min(high) > 120 * left
    for (*found, left), wanted, rel in zip(
        measured[1:], ((40, 20), (5, 8), (80, 100)), (0.1, 0.15, 0.1), strict=True
    ):
        for rate, ceiling in zip(found, wanted, strict=True):
            assert_near(rate, ceiling, rel, left)


def test_a_limit_below_the_tier(shaped: Shaped) -> None:
    """Best-effort work with a limit of its own gets that, and its tier gets the rest."""
    host = shaped.host
    flows = [
        Flow(host, host.name, seconds=1, mbit=150, cgroup=shaped.cgroups[name], extra=UDP)
        for name in ("limited", "batch")
    ]
    time.sleep(0.7)
    steal = Steal()
    rates = shaped.rates(1.0)
    left = steal.left_ratio()
    for flow in flows:
        flow.end()
    print({number: round(rates[False, number], 1) for number in (BEST_EFFORT, LIMITED)})
    assert_near(rates[False, LIMITED], 30, 0.1, left)
    assert rates[False, BEST_EFFORT] > 120 * left
