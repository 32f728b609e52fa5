# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Warnings of a page, from the status of an agent."""

import pytest

from controller.page.view import Tracker


def notes(status: dict[str, object]) -> tuple[str, ...]:
    return Tracker().update(status).notes


def test_cgroups_that_do_not_exist_are_named() -> None:
    missing = [f"config.yaml:{line}: cgroup: /\x1bweb does not exist" for line in range(9)]
    assert notes({"ready": True, "missing": missing}) == tuple(
        rf"not there: config.yaml:{line}: cgroup: /\x1bweb does not exist" for line in range(5)
    )


@pytest.mark.parametrize("odd", [None, "web", 7, {"a": 1}])
def test_a_page_of_another_version_has_no_such_warning(odd: object) -> None:
    assert notes({"ready": True, "missing": odd}) == ()
