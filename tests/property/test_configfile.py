# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Any file gives a configuration or a ConfigError."""

import contextlib
from pathlib import Path
import tempfile

from hypothesis import example, given
from hypothesis import strategies as st
import yaml

from controller.config.load import Config, ConfigError, load

WORDS = ["1s", "5%", "10mcpu", "web", "/web", "/*", "best-effort", "latency-sensitive"]
FIELDS = ["mode", "tick", "http", "reserve", "workloads", "profiles", "name", "cgroup", "class"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(WORDS)
)
KEYS = st.sampled_from([*FIELDS, "[key]", "<auto>", ""]) | st.text(max_size=8)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


def check(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config.yaml"
        path.write_bytes(raw)
        try:
            config = load(path, cpus=2)
        except ConfigError as error:
            assert error.problems
            assert all(problem.startswith(str(path)) for problem in error.problems[:20])
            assert all(len(problem) <= 400 for problem in error.problems)
        else:
            assert isinstance(config, Config)


PROFILE_FIELDS = [
    "name",
    "indicators",
    "runq_p99",
    "wait_ratio",
    "cpi",
    "sweet_point",
    "gains",
    "kp",
]
PROFILE_KEYS = st.sampled_from([*PROFILE_FIELDS, "knobs", "cpu.quota", "floor", "evict"])


@given(st.binary(max_size=300))
@example(b"\xef\xbb\xbf")
@example(b"{" * 2000)
@example(b"? ? ? ?")
@example(b"a: \xc2\x85\n")
def test_any_bytes(raw: bytes) -> None:
    check(raw)


@given(st.text(alphabet="abw:-?[]{}&*!|>'\"%@`#, \n\t0.~", max_size=200))
def test_any_yaml_punctuation(text: str) -> None:
    check(text.encode())


@given(st.dictionaries(KEYS, TREES, max_size=8))
def test_any_tree(tree: object) -> None:
    check(yaml.safe_dump(tree).encode())


@given(
    st.recursive(
        SCALARS,
        lambda inner: st.dictionaries(PROFILE_KEYS, inner, max_size=6),
        max_leaves=20,
    )
)
def test_any_profile(tree: object) -> None:
    if isinstance(tree, dict):
        tree.setdefault("name", "mine")
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "profile.yaml").write_text(yaml.safe_dump(tree))
        path = Path(directory) / "config.yaml"
        path.write_text(
            "profiles: [profile.yaml]\nworkloads: [{name: a, cgroup: /a, class: system}]"
        )
        with contextlib.suppress(ConfigError):
            load(path, cpus=2)
