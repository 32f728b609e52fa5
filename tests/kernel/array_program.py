# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of tests that compute the map ``output`` from the map ``input`` at every switch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from controller.probes.bpf.loader import ProgramSpec, load
from controller.probes.bpf.mapped_array import MappedArray
from tests.support.waiting import eventually

__all__ = ("outputs_of",)

_NOT_COMPUTED = np.uint64(0xDEAD << 32)


def outputs_of(spec: ProgramSpec, inputs: NDArray[np.uint64], words: int) -> NDArray[Any]:
    """Return the *words* that the program of *spec* computes from each row of *inputs*."""
    with load(spec) as loaded:
        rows, columns = inputs.shape
        given = MappedArray(loaded.map_fds["input"], np.dtype(("u8", columns)), rows)
        found = MappedArray(loaded.map_fds["output"], np.dtype(("u8", words)), rows)
        given.values.reshape(inputs.shape)[:] = inputs
        output = found.values
        # Twice: the first time it may be running with inputs from before.
        for _ in range(2):
            output[:] = _NOT_COMPUTED
            eventually("a context switch", lambda: not (output == _NOT_COMPUTED).any())
        return output.reshape(rows, words).copy()
