# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests: switches for tests with special requirements, and temporary cgroups.

``SWEETPOINT_KERNEL_TESTS``, ``SWEETPOINT_VM_TESTS`` and ``SWEETPOINT_KUBE_TESTS`` unset: run the
tests if this machine meets their requirements; ``1``: run them, a missing requirement is a
failure; ``0``: skip them.
"""

from collections.abc import Iterator
import fcntl
import functools
import importlib.util
import itertools
import os
from pathlib import Path
import shutil
import signal
import subprocess

from hypothesis import settings as hypothesis_settings
import pytest

from actuators.core_scheduling import cookie
from controller import doctor
from controller.cli import top_pages
from controller.host import rtnetlink
from controller.host.facts import CgroupLayout, HostError, find_cgroup_layout
from controller.probes.bpf import compiler
from tests.kernel.overload import CPU
from tests.support.beside import IN_CHILD, Reporter
from tests.support.cgroups import remove_cgroup
from tests.support.quality import Quality
from tests.support.waiting import DEADLINE_S

# A deadline for one example measures the load of the machine.
# The same examples in every run, so that a run says something about the change that it tests. New
# ones are tried by `make soak`, with the profile "explore".
hypothesis_settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
hypothesis_settings.register_profile("explore", deadline=None)
hypothesis_settings.load_profile("repeatable")
# How long the product waits for its children, the kernel and an agent: a slow machine takes longer.
doctor.TRIAL_TIMEOUT_S = compiler._TIMEOUT_S = cookie._CLEAR_S = DEADLINE_S
rtnetlink._TIMEOUT_S = top_pages._TIMEOUT_S = DEADLINE_S
# A program that a shell starts in the background ignores Ctrl-C, and so do its children: those of
# tests that send it would go on for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PREFIX = f"sweetpoint-test-{os.getpid()}"
_numbers = itertools.count()


@functools.cache
def kernel_tests_reason() -> str | None:
    """Why kernel tests cannot run here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    try:
        layout = find_cgroup_layout()
    except HostError as error:
        return str(error)
    if not os.access(layout.mount, os.W_OK):
        return f"{layout.mount} is not writable"
    if layout.version == "v2":
        subtree = layout.mount / "cgroup.subtree_control"
        if "cpu" not in subtree.read_text().split():
            return f"the cpu controller is off below the root: echo +cpu > {subtree}"
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"
    if importlib.util.find_spec("bcc") is None:
        return "the distribution's bcc (python3-bpfcc) is not reachable from this Python"
    return None


@functools.cache
def vm_tests_reason() -> str | None:
    """Why tests in the test kernel cannot run here, or None."""
    if os.environ.get("SWEETPOINT_VM_REPORTS"):
        return None  # running inside the test kernel
    tree = Path(__file__).parents[1]
    built = subprocess.run(
        [tree / "tools" / "test-kernel", "path"], capture_output=True, check=False
    )
    if built.returncode != 0:
        return "the test kernel is not built: run tools/test-kernel build (ten minutes, once)"
    for program in ("qemu-system-x86_64", "busybox"):
        if shutil.which(program) is None:
            return f"{program} is missing: run tools/test-kernel build"
    return None


@functools.cache
def kube_tests_reason() -> str | None:
    """Why tests against a Kubernetes API server cannot run here, or None."""
    tree = Path(__file__).parents[1]
    built = subprocess.run([tree / "tools" / "real-node", "path"], capture_output=True, check=False)
    if built.returncode != 0:
        return "Kubernetes is not built: run tools/real-node build (ten minutes, once)"
    for program in ("etcd", "kubectl", "openssl"):
        if shutil.which(program) is None:
            return f"{program} is missing: run tools/bootstrap"
    return None


_REASONS = {"kernel": kernel_tests_reason, "vm": vm_tests_reason, "kube": kube_tests_reason}
# Markers of tests that come after all others; the last marker comes last.
_LATE = ("vm", "kube", "apart", "thorough")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Quality())
    if IN_CHILD in os.environ:
        config.pluginmanager.register(Reporter(config, Path(os.environ[IN_CHILD])))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests of `make test` run first, and report those that run beside them last."""
    if len(items) > 1:
        items.sort(key=lambda item: [bool(item.get_closest_marker(each)) for each in _LATE])


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, find_reason in _REASONS.items():
        if item.get_closest_marker(marker) is None:
            continue
        variable = f"SWEETPOINT_{marker.upper()}_TESTS"
        switch = os.environ.get(variable, "")
        if switch not in ("", "0", "1"):
            pytest.fail(f"{variable}={switch}: use 1, 0 or leave it unset", pytrace=False)
        if switch == "0":
            pytest.skip(f"{variable}=0")
        reason = find_reason()
        if reason is not None and switch == "1":
            pytest.fail(f"{variable}=1, but this machine cannot: {reason}", pytrace=False)
        if reason is not None:
            pytest.skip(reason)


@pytest.fixture(scope="session")
def cgroup_layout() -> CgroupLayout:
    """The host's cpu hierarchy."""
    return find_cgroup_layout()


@pytest.fixture
def cgroup_root(cgroup_layout: CgroupLayout) -> Iterator[Path]:
    """A new cgroup of the cpu hierarchy; afterwards its processes are killed and it is removed.

    Put processes into its children only: on v2 a cgroup that enables controllers for its children
    cannot have processes itself.
    """
    root = cgroup_layout.mount / f"{_PREFIX}-{next(_numbers)}"
    root.mkdir()
    try:
        if cgroup_layout.version == "v2":
            (root / "cgroup.subtree_control").write_text("+cpu")
        yield root
    finally:
        remove_cgroup(root)


@pytest.fixture
def cgroup2_root(cgroup_layout: CgroupLayout) -> Iterator[Path]:
    """A new cgroup of the cgroup2 tree; afterwards its processes are killed and it is removed."""
    if cgroup_layout.unified is None:
        pytest.skip("no cgroup2 tree is mounted")
    root = cgroup_layout.unified / f"{_PREFIX}-{next(_numbers)}"
    root.mkdir()
    try:
        yield root
    finally:
        remove_cgroup(root)


@pytest.fixture
def alone_on_cpu() -> Iterator[None]:
    """Wait until no test of another process with this fixture overloads ``CPU``.

    The service of each would suffer from the other's work, and not from what the test blames.
    """
    directory = os.open(f"/sys/devices/system/cpu/cpu{CPU}", os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the run if one of its cgroups still exists at the end."""
    yield
    try:
        layout = find_cgroup_layout()
    except HostError:
        return
    mounts = {layout.mount, layout.unified or layout.mount}
    left = sorted(str(path) for mount in mounts for path in mount.glob(f"{_PREFIX}*"))
    assert not left, f"cgroups left behind: {left}"
