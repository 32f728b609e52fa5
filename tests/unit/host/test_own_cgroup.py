# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which cgroups are shared with arbitrary programs, so that the agent leaves them."""

import pytest

from controller.host.own_cgroup import is_shared


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/user.slice",
        "/user.slice/user-1000.slice",
        "/user.slice/user-0.slice/session-c2.scope",
    ],
)
def test_the_root_and_login_sessions_are_shared(path: str) -> None:
    assert is_shared(path)


@pytest.mark.parametrize(
    "path",
    [
        "/system.slice/sweetpoint.service",
        "/kubepods/burstable/pod12/34",
        "/docker/0123456789ab",
        "/sweetpoint-agent",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope",
        "/user.slice/user-1000.slice/session-3.scope/inner",
        "/../kubepods",
        "",
    ],
)
def test_a_cgroup_that_another_program_made_for_the_agent_is_not(path: str) -> None:
    assert not is_shared(path)
