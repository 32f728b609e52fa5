# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles: shipped files, files of an administrator, and one message per mistake."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from controller.config.load import ConfigError, json_schemas, load
from controller.core.model import Channel, IndicatorName, Knob
from controller.core.settings import Gains, KnobLimits, Profile
from controller.core.tuning import DEFAULT_LIMITS, auto_gains
from controller.host.package_data import profiles_dir

WORKLOADS = """\
workloads: [{name: web, cgroup: /web, class: latency-sensitive, profile: mine}]
profiles: [mine.yaml]
"""
MINE = """\
name: mine
indicators:
  runq_p99: {sweet_point: 3ms, tolerance: 3, resolution: 20us, dead_zone: 0.2, window: 2s,
             filter: 1s, min_samples: 5, channel: cpu, gains: {kp: 0.5, ti: 2s, td: 100ms}}
sched_idle: false
be_share_min: 0.3
idle_below: 1%
knobs:
  cpu.quota: {floor: 100mcpu, squeeze: 1/s, release_step: 0.2, release_spacing: 10s}
evict: {enabled: false, after: 2m}
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(WORKLOADS)
    return tmp_path


def problems(profile: str, *, cpus: int = 4) -> list[str]:
    Path("mine.yaml").write_text(profile)
    with pytest.raises(ConfigError) as caught:
        load(Path("config.yaml"), cpus=cpus)
    return [p for p in caught.value.problems if "no profile named" not in p]


def test_every_field(directory: Path) -> None:
    Path("mine.yaml").write_text(MINE)
    profile = load(Path("config.yaml"), cpus=4).settings.profiles["mine"]
    (spec,) = profile.indicators
    assert (spec.name, spec.sweet_point, spec.tolerance) == (IndicatorName.RUNQ_P99, 3e6, 3.0)
    assert (spec.resolution, spec.dead_zone, spec.min_samples) == (20e3, 0.2, 5)
    assert (spec.window_ns, spec.filter_ns, spec.channel) == (2 * 10**9, 10**9, Channel.CPU)
    assert spec.gains == Gains(kp=0.5, ti_s=2.0, td_s=0.1)
    assert profile == Profile(
        name="mine",
        indicators=(spec,),
        sched_idle=False,
        be_share_min=0.3,
        idle_oncpu_ratio=0.01,
        limits={
            **DEFAULT_LIMITS,
            Knob.CPU_QUOTA: KnobLimits(
                floor=0.1, squeeze_per_s=1.0, release_step=0.2, release_spacing_ns=10 * 10**9
            ),
        },
        evict_enabled=False,
        evict_after_ns=120 * 10**9,
    )


@pytest.mark.parametrize("path", sorted(profiles_dir().glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_profile(path: Path, directory: Path) -> None:
    data = yaml.safe_load(path.read_text())
    jsonschema.validate(data, json_schemas()["profile"])
    assert data["name"] == path.stem
    assert path.read_text().startswith("# "), (
        "a profile starts with its purpose and the sources of its numbers"
    )
    config = f"workloads: [{{name: a, cgroup: /a, class: latency-sensitive, profile: {path.stem}}}]"
    if "service" in data["indicators"]:
        config += "\nservice_level: {services: {a: {metrics: {program: vllm}}}}"
    Path("config.yaml").write_text(config)
    profile = load(Path("config.yaml"), cpus=2).settings.profiles[path.stem]
    assert profile.sched_idle
    assert IndicatorName.RUNQ_DELAY_P99 in [spec.name for spec in profile.indicators]


def test_the_default_profile_spells_out_the_defaults(directory: Path) -> None:
    waits = ("runq_delay_p99", "runq_p99")
    short = "name: mine\nindicators:\n"
    short += "".join(f"  {n}: {{sweet_point: {{learn: true, until_sure: 4ms}}}}\n" for n in waits)
    learned = ("cpi", "cpu_per_packet", "refaults")
    short += "".join(f"  {name}: {{sweet_point: learn}}\n" for name in learned)
    short += "  net_backlog: {sweet_point: 4ms}\n"
    Path("mine.yaml").write_text(short)
    profiles = load(Path("config.yaml"), cpus=4).settings.profiles
    mine, default = profiles["mine"], profiles["default"]
    assert (mine.indicators, mine.limits) == (default.indicators, default.limits)
    assert (mine.be_share_min, mine.idle_oncpu_ratio) == (0.2, 0.005)
    assert (default.be_share_min, default.idle_oncpu_ratio) == (0.2, 0.005)
    assert (mine.sched_idle, mine.evict_after_ns) == (True, 60 * 10**9)
    assert mine.limits[Knob.CPU_QUOTA] == DEFAULT_LIMITS[Knob.CPU_QUOTA]


def test_auto_gains_are_for_this_tick(directory: Path) -> None:
    Path("mine.yaml").write_text("name: mine\nindicators: {runq_p99: {sweet_point: 4ms}}\n")
    for tick_ms in (100, 500):
        Path("config.yaml").write_text(f"tick: {tick_ms}ms\n" + WORKLOADS)
        (spec,) = load(Path("config.yaml"), cpus=4).settings.profiles["mine"].indicators
        assert spec.gains == auto_gains(10**9, tick_ms * 10**6, 4 * 10**9)


def test_own_profile_replaces_a_shipped_one(directory: Path) -> None:
    Path("mine.yaml").write_text(MINE.replace("name: mine", "name: nginx"))
    Path("config.yaml").write_text(WORKLOADS.replace("profile: mine", "profile: nginx"))
    profiles = load(Path("config.yaml"), cpus=4).settings.profiles
    assert profiles["nginx"].indicators[0].sweet_point == 3e6


def test_two_own_profiles_with_one_name(directory: Path) -> None:
    Path("mine.yaml").write_text(MINE)
    Path("other.yaml").write_text(MINE)
    Path("config.yaml").write_text(WORKLOADS.replace("mine.yaml", "mine.yaml, other.yaml"))
    with pytest.raises(ConfigError) as caught:
        load(Path("config.yaml"), cpus=4)
    assert caught.value.problems == (
        "config.yaml:2: profiles[1]: other.yaml and mine.yaml both define profile 'mine'",
    )


def test_missing_profile_file(directory: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Path("config.yaml"), cpus=4)
    assert caught.value.problems == (
        "config.yaml:2: profiles[0]: mine.yaml: cannot read: there is no such file or directory",
        "config.yaml:1: workloads[0].profile: no profile named 'mine' "
        "(have: default, inference, memcached, nginx, redis)",
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("3ms", "3", "3: indicators.runq_p99.sweet_point: '3' is not a duration such as"),
        ("3ms", "3MB", "3: indicators.runq_p99.sweet_point: '3MB' is not a duration such as"),
        ("3ms", "20us", "3: indicators.runq_p99.resolution: must be above 0 and below the sweet"),
        ("20us", "0us", "3: indicators.runq_p99.resolution: must be above 0 and below the sweet"),
        ("tolerance: 3", "tolerance: 1", "3: indicators.runq_p99.tolerance: must be greater than"),
        (
            "min_samples: 5",
            "min_samples: -1",
            "4: indicators.runq_p99.min_samples: must be greater",
        ),
        (
            "min_samples: 5",
            "min_samples: 5.5",
            "4: indicators.runq_p99.min_samples: must be a valid",
        ),
        ("dead_zone: 0.2", "dead_zone: 1", "3: indicators.runq_p99.dead_zone: must be less than 1"),
        ("filter: 1s", "filter: 30s", "4: indicators.runq_p99.filter: must be at most ten times"),
        ("channel: cpu", "channel: disk", "4: indicators.runq_p99.channel: must be 'cpu', 'cache'"),
        ("kp: 0.5", "kp: 0", "4: indicators.runq_p99.gains.kp: must be greater than 0, not 0"),
        ("kp: 0.5, ", "", "4: indicators.runq_p99.gains.kp: is missing"),
        ("kp: 0.5", "ki: 0.5", "4: indicators.runq_p99.gains.kp: is missing"),
        ("{kp: 0.5, ti: 2s, td: 100ms}", "fast", "4: indicators.runq_p99.gains: must be auto or a"),
        ("runq_p99", "runq_p999", "3: indicators.runq_p999: must be 'runq_p50', 'runq_p95', "),
        ("runq_p99", "cpi", "3: indicators.cpi.sweet_point: '3ms' is not a number without a unit"),
        ("runq_p99", "psi_io", "3: indicators.psi_io.sweet_point: '3ms' is not a ratio such as"),
        ("runq_p99", "net_rate", "3: indicators.net_rate.sweet_point: '3ms' is not a bandwidth"),
        ("runq_p99", "service", "4: indicators.service.min_samples: service is not computed"),
        (
            "sched_idle: false",
            "sched_idle: off",
            "5: sched_idle: must be a valid boolean, not 'off'",
        ),
        ("0.3", "120%", "6: be_share_min: must be between 0 and 1, not '120%'"),
        ("1%", "1ms", "7: idle_below: '1ms' is not a ratio such as 20% or 0.2"),
        ("cpu.quota", "cpu.quote", "9: knobs[\"cpu.quote\"]: must be 'cpu.quota', 'cpu.idle', "),
        (
            "cpu.quota",
            "cpu.idle",
            '9: knobs["cpu.idle"]: not a graded knob: use the field sched_idle',
        ),
        ("cpu.quota", "tc.tree", '9: knobs["tc.tree"]: not a graded knob'),
        ("cpu.quota", "io.max", "9: knobs[\"io.max\"].floor: '100mcpu' is not a ratio such as"),
        ("cpu.quota", "resctrl.l3", "9: knobs[\"resctrl.l3\"].floor: '100mcpu' is not a number"),
        ("100mcpu", "1mcpu", '9: knobs["cpu.quota"].floor: must be between 10mcpu and 1024cpu'),
        ("1/s", "1", "9: knobs[\"cpu.quota\"].squeeze: '1' is not a rate such as 2/s"),
        ("1/s", "fast/s", "9: knobs[\"cpu.quota\"].squeeze: 'fast/s' is not a rate such as 2/s"),
        ("1/s", "nan/s", "9: knobs[\"cpu.quota\"].squeeze: 'nan/s' is not a rate such as 2/s"),
        ("step: 0.2", "step: 0", '9: knobs["cpu.quota"].release_step: must be greater than 0'),
        ("enabled: false", "enabled: true", "10: evict.enabled: no way to evict"),
        ("after: 2m", "after: 2", "10: evict.after: '2' is not a duration such as"),
        ("after: 2m", "until: 2m", "10: evict.until: unknown key (known: after, enabled)"),
        ("name: mine", "name: My Profile", "1: name: must match pattern"),
        ("name: mine", "title: mine", "1: name: is missing"),
    ],
)
def test_one_wrong_field(directory: Path, old: str, new: str, message: str) -> None:
    assert MINE.count(old) == 1 or old in ("1%", "3ms")
    found = problems(MINE.replace(old, new, 1))
    assert found[0].startswith(f"mine.yaml:{message}")


def test_floor_must_leave_room_on_this_host(directory: Path) -> None:
    assert problems(MINE.replace("100mcpu", "2cpu"), cpus=2) == [
        "config.yaml:1: workloads: profile 'mine': the floor of cpu.quota is not below 2 CPUs"
    ]


def test_schema_and_models_agree_on_a_wrong_unit() -> None:
    schema = json_schemas()["profile"]
    jsonschema.validate(yaml.safe_load(MINE), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(MINE.replace("window: 2s", "window: 2")), schema)


@pytest.mark.usefixtures("directory")
def test_indicators_are_not_inherited_and_the_schema_and_the_docs_say_so() -> None:
    Path("mine.yaml").write_text("name: mine\nindicators: {psi_io: {sweet_point: 3%}}\n")
    (indicator,) = load(Path("config.yaml"), cpus=4).settings.profiles["mine"].indicators
    assert indicator.name is IndicatorName.PSI_IO
    said = json_schemas()["profile"]["properties"]["indicators"]["description"]
    assert "none comes from the profile default" in said
    docs = (Path(__file__).parents[3] / "docs" / "PROFILES.md").read_text()
    assert "none is inherited from the profile `default`" in docs
