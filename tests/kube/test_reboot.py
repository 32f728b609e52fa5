# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A node that reboots under the agent: its cgroups are new, its files are those of before."""

from collections.abc import Iterator
from pathlib import Path
import re
import shutil
import signal

import pytest

from actuators.journal import Journal, Record
from controller.core.model import Knob, KnobValue
from controller.host.facts import CgroupLayout
from tests.kernel.knobs import target_of
from tests.kernel.without import BLIND
from tests.kube.standalone import (
    Kind,
    enforcing,
    in_boot,
    new_boot_id,
    standalone_node,
)
from tests.support.kube.pod_server import PodServer

pytestmark = [pytest.mark.kernel, pytest.mark.kube]


def without_ids(knobs: dict[str, str]) -> list[tuple[str, str]]:
    """Return *knobs* with one name for all containers, whose ids are new after a reboot."""
    return sorted((re.sub("[0-9a-f]{64}", "ID", name), text) for name, text in knobs.items())


def check_reboot(home: Path, kind: Kind, layout: CgroupLayout) -> None:
    """Lose the power under an agent, and start the node and another agent with the old files."""
    with PodServer(home) as server:
        with standalone_node(home, kind, layout, server) as node:
            node.wait_for_weight()
            before = without_ids(node.knobs())
            with enforcing(node) as agent:
                agent.stop(signal.SIGKILL)
            assert node.in_force() and node.records()
        with standalone_node(home, kind, layout, server) as node:
            node.wait_for_weight()
            assert without_ids(node.knobs()) == before
            # Ids of cgroups are used again: a record of that boot may name a cgroup of this one.
            Journal(node.state_dir / "journal").put(
                Record(
                    target_of(layout, node.cgroups["batch"]),
                    Knob.CPU_QUOTA,
                    original=KnobValue("50000 100000 0"),
                    previous=KnobValue("50000 100000 0"),
                    intended=KnobValue("max 100000 0"),
                )
            )
            with enforcing(node, f"{BLIND}; {in_boot(new_boot_id(home))}") as agent:
                assert agent.status()["tick"]["failed"] == 0
                assert agent.stop() == 0
            assert without_ids(node.knobs()) == before and not node.records()
            assert node.cgroup_errors() == []


def test_a_reboot_of_the_node(cgroup_layout: CgroupLayout, home: Path) -> None:
    check_reboot(home, "cgroupfs", cgroup_layout)


@pytest.fixture
def home(cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Path]:
    """A directory for the files of the node."""
    if cgroup_layout.version == "v2":
        pytest.skip("a node in cgroups of its own needs cgroup v1; v2 is tested in the test kernel")
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)
