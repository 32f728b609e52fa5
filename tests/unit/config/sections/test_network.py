# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``network:``: the records built from it, and one message per mistake."""

from pathlib import Path

import jsonschema
import pytest

from controller.config.load import ConfigError, json_schemas, load
from controller.config.sections.network import DeviceConfig, NetworkConfig, tier_rates
from controller.config.yaml_document import read_document
from controller.core.model import QosClass
from controller.core.units import UnitError, format_bandwidth, parse_bandwidth

MBIT = 125_000
GOOD = """\
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive}
network:
  devices:
    - {name: eth0, egress: 10gbit, ingress: off}
    - name: eth1
      egress: 200mbit
      tiers:
        system: {guaranteed: 10%, max: 20mbit}
        latency-sensitive: {guaranteed: 150mbit}
        best-effort: {guaranteed: {egress: 5%, ingress: 1mbit}, max: 50%}
  limits:
    - {workload: "etl*", egress: 20mbit}
"""


def network(path: Path, text: str) -> NetworkConfig:
    path.write_text(text)
    found = load(path, cpus=2).network
    assert found is not None
    return found


def test_the_records_built_from_a_section(tmp_path: Path) -> None:
    found = network(tmp_path / "c.yaml", GOOD)
    first, second = found.devices
    assert (first.name, first.egress, first.ingress) == ("eth0", 10_000 * MBIT, None)
    assert (second.egress, second.ingress) == (200 * MBIT, "auto")
    assert tier_rates(second, ingress=False, link=200 * MBIT) == {
        QosClass.SYSTEM: (20 * MBIT, 20 * MBIT),
        QosClass.LS: (150 * MBIT, 200 * MBIT),
        QosClass.BE: (10 * MBIT, 100 * MBIT),
    }
    assert tier_rates(second, ingress=True, link=200 * MBIT)[QosClass.BE] == (MBIT, 100 * MBIT)
    assert [tuple(limit) for limit in found.limits] == [("etl*", 20 * MBIT, None)]
    assert (found.mark_mask, found.force_multiqueue) == (0xF, False)
    schema = json_schemas()["config"]
    jsonschema.validate(read_document(tmp_path / "c.yaml").data, schema)


def test_without_the_section_nothing_is_shaped(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(GOOD.partition("network:")[0])
    assert load(tmp_path / "c.yaml", cpus=2).network is None


def test_defaults_fit_on_every_link(tmp_path: Path) -> None:
    text = GOOD.partition("network:")[0] + "network: {devices: [{name: eth0}]}\n"
    (device,) = network(tmp_path / "c.yaml", text).devices
    for link in (1000, 200 * MBIT, 12_500_000_000):
        rates = tier_rates(device, ingress=True, link=link)
        assert sum(guaranteed for guaranteed, _ in rates.values()) <= link
        assert {most for _, most in rates.values()} == {link}


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("200mbit", "200", "'200' is not a bandwidth such as"),
        ("10gbit", "1gbps", "'1gbps' is not a bandwidth such as"),
        ("10gbit", "2000gbit", "must be between 8kbit and 1000gbit"),
        ("150mbit", "300mbit", "latency-sensitive: guaranteed is more than max"),
        ("150mbit", "185mbit", "the sum of guaranteed is more than the link's 200mbit"),
        ("max: 20mbit", "max: 300mbit", "system: max must be above 0 and at most 200mbit"),
        ("max: 50%", "max: 500%", "must be between 0% and 100%"),
        ("5%, ingress: 1mbit", "5%", "must be one amount, or a mapping of egress and ingress"),
        ("ingress: off", "ingres: off", "unknown key (did you mean ingress?)"),
        ("name: eth1", "name: eth0", "'eth0' is listed twice"),
        ("name: eth1", "name: ../eth1", "name"),
        ("name: eth1", "name: a-name-that-is-too-long", "name"),
        (", egress: 20mbit", "", "limits neither direction"),
        ("10gbit, ingress", "off, ingress", "shapes neither direction"),
        ("  limits:", "  mark_mask: 0x5\n  limits:", "must be one run of bits"),
        ("  limits:", "  mark_mask: 0x30\n  limits:", "has room for 3 classes, and there are 4"),
        ("  limits:", "  mark_mask: f\n  limits:", "mark_mask"),
        ("  limits:", "  existing_qdisc: adopt\n  limits:", "adopt needs a device"),
        ("ingress: off", 'ingress: off, best_effort_class: "1:30"', "is only for existing_qdisc"),
        ("  limits:", "  existing_qdisc: keep\n  limits:", "existing_qdisc"),
    ],
)
def test_one_mistake_with_its_place(tmp_path: Path, good: str, bad: str, message: str) -> None:
    assert good in GOOD
    path = tmp_path / "c.yaml"
    path.write_text(GOOD.replace(good, bad, 1))
    with pytest.raises(ConfigError) as error:
        load(path, cpus=2)
    (problem,) = error.value.problems
    assert problem.startswith(f"{path}:") and "network" in problem
    assert message in problem


def test_a_foreign_class(tmp_path: Path) -> None:
    text = GOOD.partition("network:")[0] + (
        "network:\n  existing_qdisc: adopt\n  devices:\n"
        '    - {name: eth0, egress: 1gbit, ingress: off, best_effort_class: "1:30"}\n'
    )
    (device,) = network(tmp_path / "c.yaml", text).devices
    assert isinstance(device, DeviceConfig)
    assert device.best_effort_class == "1:30"
    with pytest.raises(ConfigError, match="must be off on a device with best_effort_class"):
        network(tmp_path / "c.yaml", text.replace("ingress: off", "ingress: auto"))


@pytest.mark.parametrize(
    ("text", "number"),
    [("8kbit", 1000), ("200mbit", 25_000_000), ("2.5gbit", 312_500_000), ("1 gbit", 125_000_000)],
)
def test_bandwidths(text: str, number: int) -> None:
    assert parse_bandwidth(text) == number
    assert parse_bandwidth(format_bandwidth(number)) == number


@pytest.mark.parametrize("text", ["", "10", "10mb", "10MBit", "-1mbit", "1e3mbit", "mbit"])
def test_text_that_is_not_a_bandwidth(text: str) -> None:
    with pytest.raises(UnitError):
        parse_bandwidth(text)
