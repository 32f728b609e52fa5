# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles given as texts: all or none are accepted, and number and size are bounded."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.config.profile_set import MAX_CHARS, MAX_PROFILES, parse_profiles
from controller.config.yaml_document import ConfigError
from controller.host.package_data import profiles_dir

ORIGIN = "configmap ops/tuning"
GOLD = "name: gold\nindicators: {runq_p99: {sweet_point: 3ms}}\n"


def problems(texts: dict[str, object], *, tick_ns: int = 2 * 10**8, cpus: int = 4) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_profiles(texts, ORIGIN, tick_ns=tick_ns, cpus=cpus)
    return [problem.removeprefix(f"{ORIGIN}: ") for problem in caught.value.problems]


def test_texts_give_the_profiles_that_files_give() -> None:
    texts = {file.name: file.read_text() for file in profiles_dir().glob("*.yaml")}
    found = parse_profiles({**texts, "gold.yaml": GOLD}, ORIGIN, tick_ns=2 * 10**8, cpus=4)
    assert sorted(found) == ["default", "gold", "inference", "memcached", "nginx", "redis"]
    assert found["gold"].indicators[0].sweet_point == 3e6
    assert parse_profiles({}, ORIGIN, tick_ns=2 * 10**8, cpus=4) == {}


def test_one_mistake_refuses_all_and_every_mistake_is_listed() -> None:
    assert problems(
        {
            "gold.yaml": GOLD,
            "a.yaml": GOLD,
            "b.yaml": "name: b\nindicators: {runq_p99: {sweet_point: 3}}\n",
            "notes.txt": "hello",
            "number.yaml": 7,
        }
    ) == [
        "a.yaml:1: name: must be the name in its key, 'a.yaml'",
        "b.yaml:2: indicators.runq_p99.sweet_point: '3' is not a duration such as 200ms, 2s or 10m",
        "notes.txt: not a profile: keys are NAME.yaml, values are text",
        "number.yaml: not a profile: keys are NAME.yaml, values are text",
    ]


def test_profiles_that_conflict_with_this_host() -> None:
    assert problems({"gold.yaml": GOLD}, tick_ns=5 * 10**9) == [
        "gold.yaml:2: indicators.runq_p99.window: the tick is longer than the window of runq_p99 "
        "in profile 'gold'"
    ]
    text = GOLD + "knobs: {cpu.quota: {floor: 2cpu}}\n"
    assert problems({"gold.yaml": text}, cpus=2) == [
        "gold.yaml:3: knobs[\"cpu.quota\"].floor: profile 'gold': the floor of cpu.quota is not "
        "below 2 CPUs"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "x.yaml: the file is empty"),
        ("a: &x [1]\nb: [*x, *x]\n", "x.yaml:1: anchors (&x) are not supported"),
        ("a: *x\n", "x.yaml:1: aliases (*x) are not supported"),
        ("!!python/object:os.system {}\n", "x.yaml:1: tags (tag:yaml.org,2002:python/object:"),
        ("[" * 5000, "x.yaml:1: nested deeper than 16 levels"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: more than one YAML document"),
        ("a: \x07", "x.yaml:1: not YAML: "),
        ("{", "x.yaml:2: not YAML: "),
        ("[" * 9, "x.yaml:2: not YAML: "),
        ("- 1\n", "x.yaml:1: must be a mapping"),
    ],
)
def test_hostile_text(text: str, problem: str) -> None:
    (found,) = problems({"x.yaml": text})
    assert found.startswith(problem)
    assert len(found) < 500 and found.isprintable()


def test_bounds() -> None:
    many: dict[str, object] = {f"p{i}.yaml": GOLD for i in range(MAX_PROFILES + 1)}
    assert problems(many) == [f"more than {MAX_PROFILES} profiles"]
    assert problems({"x.yaml": "#" * (MAX_CHARS + 1)}) == [f"more than {MAX_CHARS >> 10} KiB"]
    (found,) = problems({"x" * 253: "a"})
    assert len(found) < 200


_WORDS = (
    *("name: x\n", "indicators:", "runq_p99", "sweet_point", "knobs", "cpu.quota", "evict"),
    *(": ", "- ", "{", "}", "[", "]", ",", "\n", "  ", "&a ", "*a", "!!int ", "? ", "|", ">", "#"),
    *("'", '"', "\t", "\0", "\ud800", "\u2028", "1e400", "-1", "3ms", "9" * 30, "~", "---\n", "%"),
)


@given(st.lists(st.sampled_from(_WORDS) | st.text(max_size=5), max_size=40).map("".join))
def test_any_text_is_a_profile_or_refused(text: str) -> None:
    try:
        found = parse_profiles({"x.yaml": text}, ORIGIN, tick_ns=2 * 10**8, cpus=4)
    except ConfigError as error:
        assert all(problem.startswith(ORIGIN) for problem in error.problems)
    else:
        assert set(found) == {"x"}
