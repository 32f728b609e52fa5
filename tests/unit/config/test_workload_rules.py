# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cgroups that two workloads would have: wrong in the text, whether they exist or not."""

from pathlib import Path

import pytest

from controller.config.load import ConfigError, load


def problems(folder: Path, *cgroups: str) -> tuple[str, ...]:
    """Return what is wrong with workloads a, b and so on in *cgroups*."""
    file = folder / "config.yaml"
    lines = (
        f"- {{name: {name}, cgroup: '{cgroup}', class: best-effort}}\n"
        for name, cgroup in zip("abc", cgroups, strict=False)
    )
    file.write_text("workloads:\n" + "".join(lines))
    try:
        load(file, cpus=4)
    except ConfigError as error:
        return tuple(each.removeprefix(f"{file}:") for each in error.problems)
    return ()


@pytest.mark.parametrize(
    ("cgroups", "problem"),
    [
        (("/web", "/web/api/v1"), "3: workloads[1].cgroup: /web/api/v1 lies inside /web of"),
        (("/web/api/v1", "/web/"), "2: workloads[0].cgroup: /web/api/v1 lies inside /web of"),
        (("/*b/[a-c]*", "/web/api/v1"), "3: workloads[1].cgroup: /web/api/v1 lies inside /web/api"),
        (("/web/api", "/w?b"), "2: workloads[0].cgroup: /web/api lies inside /web of"),
        (("/web/*", "/web/api"), "3: workloads[1].cgroup: /web/api already belongs to"),
        (("/no", "/web/*", "/web/api"), "4: workloads[2].cgroup: /web/api already belongs to"),
    ],
)
def test_a_cgroup_that_another_rule_has_is_refused(
    tmp_path: Path, cgroups: tuple[str, ...], problem: str
) -> None:
    (found,) = problems(tmp_path, *cgroups)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    "cgroups",
    [
        ("/web/api", "/web/*"),  # the first one has it, the pattern all others
        ("/web/api", "/web/api2"),
        ("/web", "/web*/api*"),  # what a pattern matches depends on the host
        ("/web/*", "/*/api*"),
        ("/web/*/v1", "/web/api"),
    ],
)
def test_other_rules_share_a_tree(tmp_path: Path, cgroups: tuple[str, ...]) -> None:
    assert problems(tmp_path, *cgroups) == ()


def test_one_mistake_is_reported_once(tmp_path: Path) -> None:
    assert len(problems(tmp_path, "/web", "/web")) == 1
    assert len(problems(tmp_path, "/web", "/web/../x")) == 1
