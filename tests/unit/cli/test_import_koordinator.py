# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The import of a slo-controller-config: each field is converted or listed in a comment."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.cli.main import main
from controller.config.load import load
from controller.config.sections.resctrl import ResctrlClass
from controller.core.model import Knob, QosClass
from controller.core.settings import CoreMode

ALL: dict[str, Any] = {
    "resource-threshold-config": {
        "clusterStrategy": {
            "enable": True,
            "cpuSuppressThresholdPercent": 70,
            "cpuSuppressPolicy": "cpuset",
            "memoryEvictThresholdPercent": 75,
        },
        "nodeStrategies": [{"name": "big", "cpuSuppressThresholdPercent": 80}],
    },
    "resource-qos-config": {
        "clusterStrategy": {
            "policies": {"cpuPolicy": "coreSched", "netQOSPolicy": "tc"},
            "lsClass": {
                "cpuQOS": {"enable": True, "groupIdentity": 2},
                "networkQOS": {"enable": True, "egressRequest": 50, "ingressRequest": "300M"},
            },
            "beClass": {
                "cpuQOS": {"enable": True, "groupIdentity": -1, "schedIdle": 1},
                "resctrlQOS": {
                    "enable": True,
                    "catRangeStartPercent": 0,
                    "catRangeEndPercent": 30,
                    "mbaPercent": 40,
                },
                "networkQOS": {"enable": True, "egressLimit": "0.5G", "ingressLimit": 40},
                "memoryQOS": {"enable": True, "wmarkRatio": 95},
            },
        }
    },
    "system-config": {"clusterStrategy": {"totalNetworkBandwidth": "1G", "minFreeKbytesFactor": 9}},
    "colocation-config": {"enable": True, "cpuReclaimThresholdPercent": 60},
    "host-application-config": {
        "applications": [
            {
                "name": "nginx",
                "qos": "LS",
                "cgroupPath": {"parentDir": "host-latency-sensitive", "relativePath": "nginx/"},
            },
            {"name": "evil", "qos": "LS", "cgroupPath": {"parentDir": "../../etc"}},
            {"name": "pods", "qos": "BE", "cgroupPath": {"base": "Kubepods", "parentDir": "x"}},
        ]
    },
    "mystery-config": {"clusterStrategy": {"depth": {"x\nmode: enforce": [1]}}},
}


def config_map(sections: dict[str, Any], kind: str = "yaml") -> str:
    data = {key: json.dumps(value, indent=2) for key, value in sections.items()}
    top = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": data}
    return json.dumps(top) if kind == "json" else yaml.safe_dump(top)


def run(tmp_path: Path, sections: dict[str, Any], *options: str, kind: str = "yaml") -> Path:
    source = tmp_path / "slo.yaml"
    source.write_text(config_map(sections, kind))
    output = tmp_path / "out"
    assert main(["import-koordinator", str(source), "--output", str(output), *options]) == 0
    return output


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_fields_with_a_counterpart_are_converted(tmp_path: Path, kind: str) -> None:
    options = ("--cpus", "64", "--cache-ways", "11", "--device", "eth0")
    config = load(run(tmp_path, ALL, *options, kind=kind) / "config.yaml", cpus=64)
    assert config.settings.reserve_cpus == pytest.approx(0.3 * 64)
    assert config.settings.core.mode is CoreMode.AUTO
    assert config.kubernetes is not None and config.kubernetes.profiles.default == "koordinator"
    profile = config.settings.profiles["koordinator"]
    assert profile.sched_idle
    assert profile.limits[Knob.MBA].floor == pytest.approx(0.4)
    assert profile.limits[Knob.LLC_WAYS].floor == 4  # ceil(11 * 30 %)
    (rule,) = config.workloads
    assert (rule.name, rule.qos) == ("nginx", QosClass.LS)
    assert rule.cgroup == "/host-latency-sensitive/nginx"
    assert config.network is not None
    (device,) = config.network.devices
    assert (device.name, device.egress, device.ingress) == ("eth0", 125_000_000, 125_000_000)
    services, best_effort = device.tiers[QosClass.LS], device.tiers[QosClass.BE]
    assert services.guaranteed.egress.ratio == pytest.approx(0.5)
    assert services.guaranteed.ingress.bytes_per_s == 37_500_000
    assert services.most.egress.ratio == 1
    assert best_effort.most.egress.bytes_per_s == 62_500_000
    assert best_effort.most.ingress.ratio == pytest.approx(0.4)
    assert best_effort.guaranteed.egress.ratio == 0


def test_fields_without_a_counterpart_are_listed(tmp_path: Path) -> None:
    text = (run(tmp_path, ALL) / "config.yaml").read_text()
    for line in (
        "cpuSuppressThresholdPercent = 70: leaves 30 % of a node's CPUs alone; with --cpus",
        'cpuSuppressPolicy = "cpuset": cpu.quota is the knob',
        "memoryEvictThresholdPercent = 75: evictions follow what a service suffers",
        "nodeStrategies = [{",
        'policies/netQOSPolicy = "tc"',
        "lsClass/cpuQOS/groupIdentity = 2: kernels of Anolis only",
        "with --cache-ways that becomes a floor",
        "with --device this becomes the section network",
        "memoryQOS/wmarkRatio = 95: memory.high moves",
        "minFreeKbytesFactor = 9: settings of the kernel",
        "colocation-config/cpuReclaimThresholdPercent = 60: see kubernetes.capacity",
        '"name": "evil"',
        '"name": "pods"',
        "mystery-config/depth/x\\nmode: enforce = [1]: not known to this import",
    ):
        assert line in text, line
    # A line break in the input does not end the comment.
    assert yaml.safe_load(text)["mode"] == "observe"


SELECTORS: tuple[tuple[dict[str, Any] | None, bool], ...] = (
    ({"matchLabels": {"pool": "big"}}, True),
    ({"matchLabels": {"pool": "small"}}, False),
    ({"matchLabels": {"pool": "big", "zone": "a"}}, False),
    ({}, True),
    (None, False),
    ({"matchExpressions": [{"key": "pool", "operator": "In", "values": ["x", "big"]}]}, True),
    ({"matchExpressions": [{"key": "pool", "operator": "NotIn", "values": ["big"]}]}, False),
    ({"matchExpressions": [{"key": "pool", "operator": "Exists"}]}, True),
    ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, True),
    ({"matchExpressions": [{"key": "pool", "operator": "Like"}]}, False),
    ({"matchExpressions": "pool"}, False),
)


@pytest.mark.parametrize(("selector", "matches"), SELECTORS)
def test_the_first_strategy_that_a_node_matches_counts(
    tmp_path: Path, selector: dict[str, Any] | None, matches: bool
) -> None:
    strategy = {"clusterStrategy": {"enable": True, "cpuSuppressThresholdPercent": 70}}
    strategies = [
        {"name": "one\nmode: enforce", "nodeSelector": selector, "cpuSuppressThresholdPercent": 80},
        {"name": "all", "nodeSelector": {}, "cpuSuppressThresholdPercent": 60},
    ]
    sections = {"resource-threshold-config": {**strategy, "nodeStrategies": strategies}}
    options = ("--cpus", "10", "--node-labels", "pool=big,kubernetes.io/os=linux")
    output = run(tmp_path, sections, *options) / "config.yaml"
    text = output.read_text()
    assert load(output, cpus=10).settings.reserve_cpus == pytest.approx(2 if matches else 4)
    name = "one\\nmode: enforce" if matches else "all"
    assert f'resource-threshold-config: what is for nodes with such labels, "{name}"' in text
    assert "nodeStrategies" not in text


def test_what_a_strategy_for_nodes_leaves_open_is_that_of_the_cluster(tmp_path: Path) -> None:
    cluster = {"beClass": {"resctrlQOS": {"enable": True, "mbaPercent": 40}}}
    node = {"nodeSelector": {}, "beClass": {"resctrlQOS": {"mbaPercent": 20}}}
    hosts = {
        "applications": [{"name": "a", "qos": "LS", "cgroupPath": {"relativePath": "a"}}],
        "nodeConfigs": [
            {
                "nodeSelector": {"matchLabels": {"pool": "big"}},
                "applications": [{"name": "b", "qos": "LS", "cgroupPath": {"relativePath": "b"}}],
            }
        ],
    }
    sections = {
        "resource-qos-config": {"clusterStrategy": cluster, "nodeStrategies": [node]},
        "host-application-config": hosts,
    }
    config = load(run(tmp_path, sections, "--node-labels", "pool=big") / "config.yaml", cpus=4)
    limits = config.settings.profiles["koordinator"].limits
    assert limits[Knob.MBA].floor == pytest.approx(0.2)
    assert [rule.name for rule in config.workloads] == ["b"]


@pytest.mark.parametrize("labels", ["pool", "=big", ""])
def test_labels_that_are_none_are_refused(
    tmp_path: Path, labels: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "slo.yaml"
    source.write_text(config_map(ALL))
    with pytest.raises(SystemExit):
        main(["import-koordinator", str(source), "--node-labels", labels])
    assert "is not KEY=VALUE,..." in capsys.readouterr().err


@pytest.mark.parametrize("entries", [{"a": 1}, [3], "x"])
def test_strategies_that_are_no_list_are_an_error_of_their_key(
    tmp_path: Path, entries: object, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "slo.yaml"
    source.write_text(config_map({"system-config": {"nodeStrategies": entries}}))
    assert main(["import-koordinator", str(source), "--node-labels", "a=b"]) == 2
    assert "must be JSON with a mapping" in capsys.readouterr().err


def test_disabled_sections_stay_disabled(tmp_path: Path) -> None:
    off = {
        "resource-threshold-config": {"clusterStrategy": {"cpuSuppressThresholdPercent": 70}},
        "resource-qos-config": {
            "clusterStrategy": {
                "beClass": {
                    "cpuQOS": {"enable": False, "schedIdle": 1},
                    "resctrlQOS": {"enable": False, "mbaPercent": 40},
                    "networkQOS": {"enable": False, "egressLimit": 10},
                }
            }
        },
    }
    output = run(tmp_path, off, "--cpus", "8", "--device", "eth0")
    config = load(output / "config.yaml", cpus=8)
    assert config.network is None
    assert config.settings.reserve_cpus == pytest.approx(0.1)  # the default of reserve
    other = tmp_path / "other"
    other.mkdir()
    plain = load(run(other, {}) / "config.yaml", cpus=8)
    assert config.settings.profiles["koordinator"] == plain.settings.profiles["koordinator"]
    assert (output / "config.yaml").read_text().count("disabled in Koordinator") == 4


def test_an_implied_default_is_listed(tmp_path: Path) -> None:
    sections = {"resource-threshold-config": {"clusterStrategy": {"enable": True}}}
    output = run(tmp_path, sections, "--cpus", "10")
    assert load(output / "config.yaml", cpus=10).settings.reserve_cpus == pytest.approx(3.5)
    assert (
        "35 % of 10 CPUs (cpuSuppressThresholdPercent; its default)"
        in (output / "config.yaml").read_text()
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("resctrlQOS", "mbaPercent"), 400),
        (("resctrlQOS", "mbaPercent"), "40"),
        (("resctrlQOS", "catRangeEndPercent"), -1),
        (("networkQOS", "egressLimit"), "12parsecs"),
        (("networkQOS", "egressLimit"), 101),
        (("networkQOS", "egressLimit"), "1"),
        (("networkQOS", "surprise"), 1),
        (("cpuQOS", "schedIdle"), True),
    ],
)
def test_invalid_values_are_not_converted(
    tmp_path: Path, path: tuple[str, str], value: object
) -> None:
    group, key = path
    best_effort = {"beClass": {group: {"enable": True, key: value}}}
    if value is True:
        best_effort["beClass"][group]["enable"] = 1
    sections = {"resource-qos-config": {"clusterStrategy": best_effort}}
    options = ("--cpus", "8", "--cache-ways", "11", "--device", "eth0")
    output = run(tmp_path, sections, *options)
    config = load(output / "config.yaml", cpus=8)
    assert config.network is None
    assert f"{key}" in (output / "config.yaml").read_text()
    profile = yaml.safe_load((output / "koordinator.yaml").read_text())
    assert set(profile) == {"name", "indicators"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "slo.yaml: the file is empty"),
        ("[]", "slo.yaml:1: is not a ConfigMap"),
        ("data: {a: '{'}", "slo.yaml:1: data.a: must be JSON with a mapping"),
        ("data: {a: '[]'}", "slo.yaml:1: data.a: must be JSON with a mapping"),
        ("data: {a: '" + "[" * 100_000 + "'}", "slo.yaml:1: data.a: must be JSON"),
        ("data: {a: '" + '{"a":' * 300 + "1" + "}" * 300 + "'}", ""),
        ("data: {a: '" + '{"a":' * 5000 + "1" + "}" * 5000 + "'}", "data.a: must be JSON"),
        ("data: {a: &x b, c: *x}", "slo.yaml:1: anchors"),
    ],
)
def test_invalid_input(
    tmp_path: Path, text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "slo.yaml"
    source.write_text(text)
    assert main(["import-koordinator", str(source)]) == (2 if problem else 0)
    stderr = capsys.readouterr().err
    assert problem in stderr
    assert len(stderr) < 1000


def test_from_stdin_to_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(config_map(ALL).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["import-koordinator", "-", "--cpus", "8"]) == 0
    stdout = capsys.readouterr().out
    assert "# ---- config.yaml\n" in stdout and "# ---- koordinator.yaml\n" in stdout
    assert "\nreserve: 2400mcpu\n" in stdout


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = run(tmp_path, ALL)
    before = (output / "config.yaml").read_bytes()
    arguments = ["import-koordinator", str(tmp_path / "slo.yaml"), "--output", str(output)]
    assert main(arguments) == 1
    assert "config.yaml: exists already" in capsys.readouterr().err
    assert (output / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("wrong", [["--cpus", "0"], ["--cpus", "x"], []])
def test_wrong_use(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["import-koordinator", *wrong])
    assert caught.value.code == 2


def test_fixed_limits_of_services_become_classes(tmp_path: Path) -> None:
    fixed = {"enable": True, "catRangeStartPercent": 20, "mbaPercent": 90}
    strategy = {
        "lsrClass": {"resctrlQOS": fixed},
        "lsClass": {"resctrlQOS": {"enable": True, "catRangeEndPercent": 80}},
        "systemClass": {"resctrlQOS": {"enable": True, "mbaPercent": 50}},
    }
    output = run(tmp_path, {"resource-qos-config": {"clusterStrategy": strategy}}) / "config.yaml"
    assert load(output, cpus=4).resctrl.classes == (
        ResctrlClass("LSR", 0.2, 1, 0.9, frozenset({"LSR", "LSE"})),
        ResctrlClass("LS", 0, 0.8, 1, frozenset({"LS"})),
    )
    assert "systemClass/resctrlQOS/mbaPercent = 50: koordlet has resctrl" in output.read_text()


@pytest.mark.parametrize(
    ("field", "value"),
    [("mbaPercent", 0), ("mbaPercent", "9"), ("catRangeEndPercent", 0), ("depth", 1)],
)
def test_limits_of_services_that_are_none_are_listed(
    tmp_path: Path, field: str, value: object
) -> None:
    strategy = {"lsClass": {"resctrlQOS": {"enable": True, field: value}}}
    output = run(tmp_path, {"resource-qos-config": {"clusterStrategy": strategy}}) / "config.yaml"
    text = output.read_text()
    assert "lsClass/resctrlQOS" in text and ("classes:" in text) is (field == "depth")
    off = {"lsClass": {"resctrlQOS": {"enable": False, "mbaPercent": 50}}}
    (tmp_path / "off").mkdir()
    again = run(tmp_path / "off", {"resource-qos-config": {"clusterStrategy": off}})
    assert "mbaPercent = 50: disabled in Koordinator" in (again / "config.yaml").read_text()


@pytest.mark.parametrize("enabled", [True, False])
def test_weights_of_disks_count_as_in_koordinator(tmp_path: Path, enabled: bool) -> None:
    slow = {"name": "pool", "type": "volumegroup", "ioCfg": {"readLatency": 3000}}
    limited = {"name": "/dev/sdb", "type": "device", "ioCfg": {"readBPS": 102400000}}
    strategy = {
        "cgroupRoot": {"blkioQOS": {"enable": enabled, "blocks": [slow]}},
        "lsClass": {"blkioQOS": {"enable": True, "blocks": [limited]}},
        "beClass": {"blkioQOS": {"enable": True, "blocks": [limited]}},
    }
    output = run(tmp_path, {"resource-qos-config": {"clusterStrategy": strategy}}) / "config.yaml"
    assert load(output, cpus=4).io.iocost is enabled
    text = output.read_text()
    for line in (
        "cgroupRoot/blkioQOS/blocks = [{",
        "the kernel's own model of the disk is used" if enabled else "disabled in Koordinator",
        "lsClass/blkioQOS/blocks = [{",
        "koordlet has limits of disks for BE and the root only",
        "beClass/blkioQOS/blocks = [{",
        "io.weight and io.max move with what services suffer",
    ):
        assert line in text, line
