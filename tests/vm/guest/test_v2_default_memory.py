# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The default profile on cgroup v2: memory.high of best-effort work for a service's page cache.

The tests are those of ``tests/kernel``, repeated in the guest.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel import test_default_memory as memory
from tests.kernel.disks import made_disks
from tests.kernel.test_refaults import Reader, ReadersNode

pytestmark = [pytest.mark.vm, pytest.mark.soak, pytest.mark.usefixtures("agent_programs")]

# A guardian takes the minute in which an agent starts here for a hang.
ALONE = "--no-guardian"

node, readers = memory.node, memory.readers


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> Iterator[None]:
    """Disks in place of the readers' files: the guest has its files in a tmpfs, which keeps all."""
    with ExitStack() as stack:
        for name, mib in (("web", memory.SERVICE_MIB), ("job", memory.JOB_MIB)):
            (disk,) = stack.enter_context(made_disks(1, mib))
            (tmp_path / name).symlink_to(disk.device)
            # The pages of a disk go with its last user.
            stack.enter_context(Path(disk.device).open("rb"))
        yield


def test_a_working_set_that_is_pushed_out_comes_back(
    node: ReadersNode, readers: tuple[Reader, Reader]
) -> None:
    high = node.below / "batch/job/memory.high"
    memory.test_a_working_set_that_is_pushed_out_comes_back_once_its_normal_is_learned(
        node, readers, ALONE
    )
    assert high.read_text() == "max\n", "given back with the end of the agent"


def test_a_service_at_its_own_limit_takes_nothing(
    node: ReadersNode, readers: tuple[Reader, Reader]
) -> None:
    memory.test_a_service_at_its_own_limit_takes_nothing_after_learning_either(node, readers, ALONE)
