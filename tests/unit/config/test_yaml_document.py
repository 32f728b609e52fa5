# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Files: faults of the file, faults of the host, and data that is written and read back."""

import os
from pathlib import Path
import resource

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.config.yaml_document import (
    ConfigError,
    parse_document,
    read_document,
    write_document,
)


def test_a_missing_file_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read: there is no such file"):
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


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(
        ["off", "yes", "1e3", "0x1f", "1_0", "~", "12:30", "2001-01-01", "<<", "\x85"]
    )
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), TREES, min_size=1, max_size=4))
def test_what_is_written_is_read_back(data: dict[str, object]) -> None:
    assert parse_document(write_document(data), "x").data == data
