# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Service, job and limits of the comparison where memory is short, on a node of their own."""

from collections.abc import Iterator
from contextlib import ExitStack
import os
from pathlib import Path
import socket

import pytest

from controller.demo.cgroups import DemoCgroups, find_cpuacct_mount
from controller.host.facts import CgroupLayout
from controller.host.memory import find_memory
from tests.compare.memory.job import HOG, Job
from tests.compare.memory.node import BATCH, MIB, PODS, WEB, MemoryNode
from tests.compare.memory.pages import make_file
from tests.compare.memory.redis import Redis
from tests.support.needs import needs_program
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]


@pytest.fixture
def node(cgroup_layout: CgroupLayout) -> Iterator[MemoryNode]:
    memory = find_memory(cgroup_layout.unified)
    assert memory.mount is not None
    v1 = cgroup_layout.version == "v1"
    cgroups = DemoCgroups(
        cpu_mount=cgroup_layout.mount,
        cpuacct_mount=find_cpuacct_mount(cgroup_layout.mount) if v1 else None,
        version=cgroup_layout.version,
        tag=f"test-{os.getpid()}",
        memory=memory.mount,
    )
    with ExitStack() as stack:
        stack.callback(cgroups.remove)
        cgroups.create(())
        made = MemoryNode(cgroups, memory.mount, memory.version)
        made.make()
        yield made


@pytest.fixture
def job(node: MemoryNode, tmp_path: Path) -> Iterator[Job]:
    made = Job(node, tmp_path, HOG, "seed", PODS[:2], tmp_path / "none")
    yield made
    made.end()


def test_a_pod_that_dies_begins_again_and_one_that_is_evicted_for_good_does_not(
    node: MemoryNode, job: Job
) -> None:
    job.begin()
    eventually("both pods", lambda: set(job.living) == set(PODS[:2]))
    eventually("work", lambda: job.work_mib() > 0)
    job.evict(PODS[0], for_good=True)
    eventually("the other pod", lambda: job.living == [PODS[1]])
    assert (job.evictions, job.deaths) == (1, 0)
    # A pod that works on a piece needs 40 MiB or more.
    eventually("a limit", lambda: node.limit_batch(30 * MIB))
    eventually("two ends by the kernel", lambda: job.deaths >= 2)
    assert PODS[0] not in job.living and job.evictions == 1


def test_a_limit_below_the_need_of_the_pods_is_not_in_force(node: MemoryNode, job: Job) -> None:
    if node.version == "v2":
        pytest.skip("v2 kills")
    job.begin()

    def is_refused() -> bool:
        return node.use(BATCH).needed_bytes > 20 * MIB and not node.limit_batch(MIB)

    eventually("a refusal", is_refused)
    assert node.refused >= 1 and job.deaths == 0


@pytest.mark.soak
@needs_program("redis-server")
def test_redis_that_is_killed_begins_again_with_its_data(node: MemoryNode, tmp_path: Path) -> None:
    redis = Redis(tmp_path, node.join(WEB, 900))
    try:
        redis.begin(20)
        used = node.use(WEB).needed_bytes
        assert used > 20 * MIB
        redis.wanted_mib = 40
        eventually("more data", lambda: node.use(WEB).needed_bytes > used + 18 * MIB)
        (pid,) = (node.directory(WEB) / "cgroup.procs").read_text().split()
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "900\n"
        os.kill(int(pid), 9)
        eventually("the end", lambda: redis.deaths == 1)

        def serves() -> bool:
            try:
                with socket.create_connection(("127.0.0.1", redis.port), 5.0) as connection:
                    connection.sendall(b"GET key\r\n")
                    return connection.recv(6) == b"$10000"
            except OSError:
                return False

        eventually("an answer", serves)
        assert node.use(WEB).needed_bytes > 40 * MIB
    finally:
        redis.end()


def test_a_made_file_is_not_in_the_page_cache_of_who_reads_it_later(
    node: MemoryNode, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    make_file(path, 3 * MIB + 5)
    assert path.stat().st_size == 3 * MIB + 5
    before = node.use(WEB).all_bytes
    pid = os.fork()
    if pid == 0:
        try:
            node.join(WEB, 0)()
            path.read_bytes()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert node.use(WEB).all_bytes - before > 2 * MIB
