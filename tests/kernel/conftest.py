# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of several tests on the running kernel."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf.loader import use_cache
from controller.probes.sched import SchedProbe
from tests.kernel.agent import Site
from tests.kernel.groups import Groups
from tests.kernel.knobs import make_child, set_weight
from tests.kernel.looking import Looking
from tests.support.beside import run_in_child
from tests.support.compiled import shared


def pytest_collection_finish(session: pytest.Session) -> None:
    """Run the tests of whole programs beside the others: they mostly wait."""
    kernel = [each for each in session.items if each.get_closest_marker("kernel")]
    apart = [each for each in kernel if each.get_closest_marker("apart")]
    if len(apart) < len(kernel):
        run_in_child(session, "pytest of whole programs", apart)


@pytest.fixture(scope="session", autouse=True)
def compiled_programs() -> None:
    """Keep the programs that tests load themselves."""
    use_cache(shared("tests"))


@pytest.fixture
def pod(cgroup_root: Path) -> Path:
    """A cgroup with a weight that is not the default."""
    pod = make_child(cgroup_root, "pod")
    set_weight(pod, 333)
    return pod


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


@pytest.fixture
def looking(site: Site) -> Iterator[Looking]:
    looking = Looking(site)
    try:
        yield looking
    finally:
        looking.node.restore()
        looking.node.close()


@pytest.fixture
def probe(request: pytest.FixtureRequest) -> Iterator[SchedProbe]:
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, typed=getattr(request, "param", True))
    yield loaded
    loaded.close()


@pytest.fixture
def groups(cgroup_root: Path, cgroup_layout: CgroupLayout, probe: SchedProbe) -> Groups:
    return Groups(cgroup_root, cgroup_layout, probe)
