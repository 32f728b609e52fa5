# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Configuration files: the records built from a valid file, and one message per mistake."""

from collections.abc import Callable
import os
from pathlib import Path
import textwrap

import jsonschema
import pytest
import yaml

from controller.config.load import ConfigError, WorkloadRule, json_schemas, load
from controller.config.models import ConfigModel
from controller.core.model import Mode, QosClass
from controller.core.settings import HostFacts, SafeState

GOOD = """\
mode: enforce
tick: 100ms
state_dir: /run/sweetpoint-x
http: "[::1]:9000"
reserve: 250mcpu
safe_state: floor
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive, profile: nginx, service: shop}
  - name: batch
    cgroup: /batch/*/
    class: best-effort
"""
# Line 1 to 3 of most files below.
WORKLOADS = """\
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive, profile: nginx}
  - {name: batch, cgroup: "/batch/*", class: best-effort}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file into an empty current directory and return its bare name."""
    monkeypatch.chdir(tmp_path)

    def _write(text: str | bytes, name: str = "config.yaml") -> Path:
        raw = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
        Path(name).write_bytes(raw)
        return Path(name)

    return _write


def problems(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path, cpus=4)
    return list(caught.value.problems)


def test_every_field(write: Write) -> None:
    config = load(write(GOOD), cpus=4)
    assert config.path == Path("config.yaml")
    assert config.state_dir == Path("/run/sweetpoint-x")
    assert config.http == ("::1", 9000)
    assert config.workloads == (
        WorkloadRule(
            name="web",
            cgroup="/web",
            qos=QosClass.LS,
            service="shop",
            profile="nginx",
            origin="config.yaml:8",
        ),
        WorkloadRule(
            name="batch",
            cgroup="/batch/*",
            qos=QosClass.BE,
            service="batch",
            profile="",
            origin="config.yaml:9",
        ),
    )
    settings = config.settings
    assert settings.mode is Mode.ENFORCE
    assert settings.tick_ns == 100_000_000
    assert settings.host == HostFacts(cpus=4)
    assert settings.reserve_cpus == 0.25
    assert settings.safe_state is SafeState.FLOOR
    assert set(settings.profiles) >= {"default", "nginx", "redis", "memcached"}


def test_defaults_observe_and_bind_to_loopback(write: Write) -> None:
    config = load(write(WORKLOADS), cpus=4)
    assert config.settings.mode is Mode.OBSERVE
    assert config.settings.tick_ns == 200_000_000
    assert config.settings.reserve_cpus == 0.1
    assert config.settings.safe_state is SafeState.STATIC
    assert config.settings.stale_ticks == 5
    assert config.state_dir == Path("/run/sweetpoint")
    assert config.data_dir == Path("/var/lib/sweetpoint")
    assert config.http == ("127.0.0.1", 9464)


def test_the_command_line_overrides_the_mode(write: Write) -> None:
    assert load(write(GOOD), mode=Mode.OBSERVE, cpus=4).settings.mode is Mode.OBSERVE


def test_http_off_needs_no_quotes(write: Write) -> None:
    assert load(write("http: off\n" + WORKLOADS), cpus=4).http is None


def test_default_profile(write: Write) -> None:
    path = write("workloads: [{name: a, cgroup: /a, class: latency-sensitive}]\n")
    assert load(path, cpus=4).workloads[0].profile == "default"


def test_reserve_is_checked_against_this_host(write: Write) -> None:
    load(write(WORKLOADS))
    (problem,) = [p for p in problems_of_host(write("reserve: 1024cpu\n" + WORKLOADS))]
    assert problem.startswith("config.yaml:1: reserve: must be less than this host's ")


def test_cpus_that_are_offline_now_do_not_make_a_file_wrong(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.host.facts._CPU_DIR", tmp_path)
    write("0-3\n", "present")
    write("0,2\n", "online")
    assert load(write("reserve: 3cpu\n" + WORKLOADS)).settings.host == HostFacts(cpus=2)
    assert "4 CPUs" in problems_of_host(write("reserve: 4cpu\n" + WORKLOADS))[0]


def problems_of_host(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return list(caught.value.problems)


ONE_FIELD = [
    ("mode: enforced", "mode: must be 'observe' or 'enforce', not 'enforced'"),
    ("tik: 200ms", "tik: unknown key (did you mean tick?)"),
    (
        "colour: red",
        f"colour: unknown key (known: {', '.join(sorted(ConfigModel.model_fields))})",
    ),
    ("tick: 200", "tick: '200' is not a duration such as 200ms, 2s or 10m"),
    ("tick: 200 parsec", "tick: '200 parsec' is not a duration such as 200ms, 2s or 10m"),
    ("tick: -1s", "tick: '-1s' is not a duration such as 200ms, 2s or 10m"),
    ("tick: 1ms", "tick: must be between 50ms and 10s, not '1ms'"),
    ("tick: ", "tick: must be a number with its unit"),
    ("tick: [1s]", "tick: must be a number with its unit"),
    ("reserve: 1", "reserve: '1' is not an amount of CPU such as 1.5cpu or 250mcpu"),
    ("reserve: 4cpu", "reserve: must be less than this host's 4 CPUs"),
    ("safe_state: panic", "safe_state: must be 'static', 'restore' or 'floor', not 'panic'"),
    ("state_dir: run", "state_dir: must be an absolute path without '..'"),
    ("data_dir: /var/../x", "data_dir: must be an absolute path without '..'"),
    ("state_dir: /run/../etc", "state_dir: must be an absolute path without '..'"),
    ("http: 9464", "http: must be a valid string, not 9464"),
    ("http: ':9464'", "http: ':9464' is not HOST:PORT such as 127.0.0.1:9464, or off"),
    ("http: a:b", "http: 'a:b' is not HOST:PORT such as 127.0.0.1:9464, or off"),
    ("http: 'ü:9464'", "http: 'ü:9464' is not HOST:PORT such as 127.0.0.1:9464, or off"),
    ('http: "a\\0b:9464"', "http: 'a\\x00b:9464' is not HOST:PORT such as 127.0.0.1:9464, or off"),
    ("http: a:65536", "http: 'a:65536' is not HOST:PORT such as 127.0.0.1:9464, or off"),
    ("mode: observe\nmode: enforce", "mode: given twice; the first is in line 4"),
    ("? [a]\n: 1", "a key must be text"),
    ("profiles: x.yaml", "profiles: must be a valid list, not 'x.yaml'"),
]


@pytest.mark.parametrize(("line", "message"), ONE_FIELD)
def test_one_wrong_field(write: Write, line: str, message: str) -> None:
    at = 5 if "\nmode" in line else 4
    assert problems(write(WORKLOADS + line + "\n")) == [f"config.yaml:{at}: {message}"]


def test_a_tick_longer_than_a_window_of_a_profile_in_use(write: Write) -> None:
    assert problems(write(WORKLOADS + "tick: 5s\n")) == [
        f"config.yaml:4: tick: the tick is longer than the window of {name} in profile 'nginx'"
        for name in ("runq_delay_p99", "runq_p99", "cpi", "cpu_per_packet", "net_backlog")
    ]


ONE_WORKLOAD = [
    (
        "name: b, cgroup: /b, class: latency-sensitive, profile: ngnix",
        "[2].profile: no profile named 'ngnix' (have: default, inference, memcached, nginx, redis)",
    ),
    (
        "name: b, cgroup: /b, class: best-effort, profile: nginx",
        "[2].profile: only a latency-sensitive workload has a profile",
    ),
    (
        "name: b, cgroup: /b, class: batch",
        "[2].class: must be 'system', 'latency-sensitive' or 'best-effort', not 'batch'",
    ),
    ("name: b, cgroup: /b", "[2].class: is missing"),
    ("name: b, class: best-effort", "[2].cgroup: is missing"),
    ("name: b, cgroup: 7, class: best-effort", "[2].cgroup: must be a valid string, not 7"),
    (
        "name: web, cgroup: /b, class: best-effort",
        "[2].name: 'web' is already the name of the workload in line 2",
    ),
    (
        "name: b, cgroup: //batch/*/, class: best-effort",
        "[2].cgroup: /batch/* already belongs to the workload in line 3",
    ),
    ("name: b, cgroup: /b, class: best-effort, cpu: 1", "[2].cpu: unknown key (known: cgroup, "),
    *(
        (
            f"name: b, cgroup: {path}, class: best-effort",
            "[2].cgroup: must be a path such as /web or /batch/* below the cpu hierarchy, not its "
            "root",
        )
        for path in ("/", "b", "/b/../c", "/b/**", "///")
    ),
    ("name: ' ', cgroup: /b, class: best-effort", "[2].name: "),
]


@pytest.mark.parametrize(("fields", "message"), ONE_WORKLOAD)
def test_one_wrong_workload(write: Write, fields: str, message: str) -> None:
    (problem,) = problems(write(WORKLOADS + "  - {" + fields + "}\n"))
    assert problem.startswith(f"config.yaml:4: workloads{message}")


def test_the_line_is_that_of_the_field(write: Write) -> None:
    text = WORKLOADS + "  - name: b\n    cgroup: /b\n    class: unknown\n"
    (problem,) = problems(write(text))
    assert problem.startswith("config.yaml:6: workloads[2].class: must be ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "config.yaml: the file is empty"),
        ("# nothing\n", "config.yaml: the file is empty"),
        ("null\n", "config.yaml:1: must be a mapping"),
        ("- a\n", "config.yaml:1: must be a mapping"),
        ("mode: observe\n", "config.yaml:1: workloads: is missing"),
        ("workloads: []\n", "config.yaml:1: workloads: must have at least one entry"),
        ("workloads: [7]\n", "config.yaml:1: workloads[0]: must be a mapping"),
        ("a: 1\nb: [\n", "config.yaml:3: not YAML: did not find expected node content"),
        ("a: 1\n--- \nb: 1\n", "config.yaml:2: more than one YAML document in the file"),
        ("a: &x 1\nb: *x\n", "config.yaml:1: anchors (&x) are not supported"),
        ("a: 1\nb: *x\n", "config.yaml:2: aliases (*x) are not supported"),
        (
            "a: !!python/object:os.system {}\n",
            "config.yaml:1: tags (tag:yaml.org,2002:python/object:os.system) are not supported",
        ),
        (b"mode: observe\nname: a\0b\n", "config.yaml:2: not a text file: contains a NUL byte"),
        (b"mode: observe\nname: \xff\n", "config.yaml:2: not UTF-8 text: byte 0xff"),
        (b"mode: !%1b x\n", r"config.yaml:1: tags (!\x1b) are not supported"),
        (b"mode: observe\nname: \x07\n", "config.yaml:2: not YAML: control characters are not"),
        ("a: " + "[" * 500_000, "config.yaml:1: nested deeper than 16 levels"),
        ("a: 1\n" + "#" * (1 << 20), "config.yaml: larger than 1 MiB"),
    ],
)
def test_files_that_are_not_a_configuration(write: Write, text: str | bytes, message: str) -> None:
    (problem,) = problems(write(text))
    assert problem.startswith(message)


def test_alias_bomb_is_refused_at_once(write: Write) -> None:
    levels = [
        f"{chr(97 + n)}: &{chr(97 + n)} [{', '.join(['*' + chr(96 + n)] * 9)}]"
        for n in range(1, 20)
    ]
    (problem,) = problems(write("a: &a [x]\n" + "\n".join(levels)))
    assert problem == "config.yaml:1: anchors (&a) are not supported"


def test_missing_file_directory_and_fifo(write: Write, tmp_path: Path) -> None:
    assert problems(Path("no.yaml")) == ["no.yaml: cannot read: there is no such file or directory"]
    assert problems(tmp_path) == [f"{tmp_path}: cannot read: this is a directory, not a file"]
    os.mkfifo("pipe")
    assert problems(Path("pipe")) == ["pipe: not a regular file"]


def test_all_problems_are_reported_at_once(write: Write) -> None:
    found = problems(write("tick: 1\nmode: x\n" + WORKLOADS.replace("nginx", "ngnix")))
    assert [p.split(": ")[0:2] for p in found] == [
        ["config.yaml:2", "mode"],
        ["config.yaml:1", "tick"],
    ]


def test_a_thousand_problems_are_not_all_printed(write: Write) -> None:
    found = problems(write(WORKLOADS + "".join(f"key{n}: 1\n" for n in range(1000))))
    assert len(found) == 21
    assert found[-1] == "... and 980 more problems"


def test_long_values_are_cut(write: Write) -> None:
    (problem,) = problems(write("tick: " + "9" * 100_000 + "s\n" + WORKLOADS))
    assert len(problem) <= 400


def test_odd_numbers_are_refused_with_their_line(write: Write) -> None:
    for odd in ("9" * 400 + "s", "1e999", ".inf", "0x10", "1:30", "9" * 5000, "1_000s", "٣s"):
        (problem,) = problems(write(f"tick: {odd}\n" + WORKLOADS))
        assert problem.startswith("config.yaml:1: tick: "), odd


def test_the_example_of_the_documentation_works(write: Write) -> None:
    document = Path(__file__).resolve().parents[3] / "docs" / "CONFIGURATION.md"
    example = document.read_text().split("```yaml\n")[1].split("```")[0]
    data = yaml.safe_load(example)
    jsonschema.validate(data, json_schemas()["config"])
    config = load(write(example), cpus=4)
    assert config.settings.mode is Mode.OBSERVE
    assert [rule.cgroup for rule in config.workloads] == [w["cgroup"] for w in data["workloads"]]
