# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The histograms of the BPF programs and of the indicators have the same bucket bounds."""

from pathlib import Path

import numpy as np
import pytest

from controller.core.indicators.measurement import LOWER_NS
from controller.probes.bpf.loader import ProgramSpec
from tests.kernel.array_program import outputs_of
from tests.support.histogram import index_of

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

SOURCE = Path(__file__).with_name("histogram_check.bpf.c")


def test_every_bound_falls_into_the_same_bucket() -> None:
    values = sorted({v for bound in LOWER_NS for v in (bound - 1, bound, bound + 1) if v >= 0})
    values += [2**31, 2**32 - 1, 2**32, 2**40, 2**63]
    spec = ProgramSpec(
        source=str(SOURCE), defines={"VALUES": len(values)}, maps=("input", "output")
    )
    inputs = np.array(values, np.uint64).reshape(-1, 1)
    assert outputs_of(spec, inputs, 1).ravel().tolist() == [index_of(value) for value in values]
