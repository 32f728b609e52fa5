# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be read: faults of the file, and faults of the host."""

import os
from pathlib import Path
import resource

import pytest

from controller.config.yaml_document import ConfigError, read_document


def test_a_missing_file_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read: No such file"):
        read_document(tmp_path / "missing.yaml")


def test_a_lack_of_descriptors_is_a_fault_of_the_host(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("mode: observe\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            read_document(file)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read_document(file).data == {"mode": "observe"}
