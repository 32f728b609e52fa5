# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of sched-idle beside a kubelet on pure cgroup v2."""

from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.bench import test_sched_idle_kubelet as sched_idle

pytestmark = [pytest.mark.vm, pytest.mark.bench]


@pytest.mark.parametrize("others", list(sched_idle.OTHERS))
@pytest.mark.parametrize("service", list(sched_idle.SERVICES))
def test_share(
    cgroup_layout: CgroupLayout,
    cgroup_root: Path,
    service: str,
    others: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sched_idle, "ROUNDS", 3)
    sched_idle.test_share(cgroup_layout, cgroup_root, service, others)
