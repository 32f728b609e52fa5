# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A class for disks of a service, in files of cgroup v2: written, given back, undone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.disks import made_disks
from tests.kernel.knobs import dump, executor, make_child
from tests.support.cgroups import remove_cgroup
from tests.support.io_class import check_class

pytestmark = pytest.mark.vm


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """The cgroup of a service."""
    root = make_child(Path("/sys/fs/cgroup"), "sweetpoint-test-classes")
    yield make_child(root, "web")
    remove_cgroup(root)


def test_a_class_is_written_given_back_and_undone_after_a_kill(
    cgroup_layout: CgroupLayout, cgroup: Path, tmp_path: Path
) -> None:
    before = dump(cgroup)
    with made_disks(1) as (disk,):
        check_class(
            lambda: executor(cgroup_layout, tmp_path),
            cgroup_layout.hierarchy,
            cgroup_layout.mount,
            cgroup,
            disk.number,
        )
    assert dump(cgroup) == before
