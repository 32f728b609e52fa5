# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of several tests on the running kernel."""

from pathlib import Path

import pytest

from tests.kernel.knobs import (
    make_child,
    set_weight,
)


@pytest.fixture
def pod(cgroup_root: Path) -> Path:
    """A cgroup with a weight that is not the default."""
    pod = make_child(cgroup_root, "pod")
    set_weight(pod, 333)
    return pod
