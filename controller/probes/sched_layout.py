# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How ``bpf/sched.bpf.c`` lays out what it shares with us."""

import numpy as np

from controller.indicators.histogram import BUCKETS

__all__ = ("ACCOUNT", "ACCOUNT_WORDS", "CPU", "LATENCY", "LATENCY_WORDS")

LATENCY_WORDS = BUCKETS + 14
ACCOUNT_WORDS = 8
# Signed, as the differences that are made of it.
ACCOUNT = np.dtype([("word", "i8", ACCOUNT_WORDS)])
LATENCY = np.dtype([("bucket", "u4", LATENCY_WORDS)])
CPU = np.dtype(
    {
        "names": [
            "since",
            "slot",
            "sync_clock",
            "sync_mono",
            "switches",
            "shed",
            "running",
            "missed",
        ],
        "formats": ["u8"] * 8,
        "offsets": [0, 8, 16, 24, 32, 96, 104, 112],
        "itemsize": 16 * 8 + 16 * 24 + 64 * 16,
    }
)
