# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent, cpu.quota and cpu.idle on pure cgroup v2.

The tests are those of ``tests/kernel``, repeated in the guest.
"""

from pathlib import Path
import signal

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel import conftest as fixtures
from tests.kernel import test_actuators as actuators
from tests.kernel import test_agent as agent
from tests.kernel.agent import Site

pytestmark = pytest.mark.vm

pod, site = fixtures.pod, agent.site


def test_squeeze_and_give_back(cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path) -> None:
    actuators.test_squeeze_and_give_back(cgroup_layout, pod, tmp_path)


def test_a_foreign_value_becomes_the_new_original(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    actuators.test_a_foreign_value_becomes_the_new_original(cgroup_layout, pod, tmp_path, caplog)


@pytest.mark.soak  # an agent takes a minute to start in the guest
@pytest.mark.usefixtures("agent_programs")
def test_it_protects_the_service_and_restores_on_a_stop_signal(site: Site) -> None:
    agent.test_it_protects_the_service_and_restores_on_a_stop_signal(site, signal.SIGTERM)
