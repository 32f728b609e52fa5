# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A node whose pods a test lists."""

from pathlib import Path

import pytest

from tests.unit.workloads.pods.fake_node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)
