# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent and its two oldest knobs where everything is cgroup v2.

These are tests of the running kernel, run once more; each stands there with its reasons.
"""

from pathlib import Path
import signal

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel import test_actuators as actuators
from tests.kernel import test_agent as agent

pytestmark = pytest.mark.vm

pod, site = actuators.pod, agent.site


def test_squeeze_and_give_back(cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path) -> None:
    actuators.test_squeeze_and_give_back(cgroup_layout, pod, tmp_path)


def test_a_foreign_value_becomes_the_new_original(
    cgroup_layout: CgroupLayout, pod: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    actuators.test_a_foreign_value_becomes_the_new_original(cgroup_layout, pod, tmp_path, caplog)


@pytest.mark.soak  # compiling four probes takes a minute and a half here
def test_it_protects_the_service_and_restores_when_told_to_stop(site: agent.Site) -> None:
    agent.test_it_protects_the_service_and_restores_when_told_to_stop(site, signal.SIGTERM)
