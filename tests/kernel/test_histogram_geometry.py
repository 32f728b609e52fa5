# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The histograms of the BPF programs and of the indicators have the same bucket bounds."""

from pathlib import Path
import time

import numpy as np
import pytest

from controller.core.indicators.histogram import LOWER_NS, index_of
from controller.probes.bpf.loader import ProgramSpec, load
from controller.probes.bpf.mapped_array import MappedArray

pytestmark = pytest.mark.kernel

SOURCE = Path(__file__).with_name("histogram_check.bpf.c")


def test_every_bound_falls_into_the_same_bucket() -> None:
    values = sorted({v for bound in LOWER_NS for v in (bound - 1, bound, bound + 1) if v >= 0})
    values += [2**31, 2**32 - 1, 2**32, 2**40, 2**63]
    spec = ProgramSpec(
        source=str(SOURCE), defines={"VALUES": len(values)}, maps=("input", "output")
    )
    with load(spec) as loaded:
        given = MappedArray(loaded.map_fds["input"], np.dtype("u8"), len(values))
        found = MappedArray(loaded.map_fds["output"], np.dtype("u8"), len(values))
        given.values[:] = values
        for _ in range(100):  # every sleep is a context switch on this CPU
            time.sleep(0.001)
        assert found.values.tolist() == [index_of(value) for value in values]
