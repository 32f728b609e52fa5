# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

# A block between two others of 100,000 bytes is freed: the heap cannot shrink at its end.
SCRIPT = """
from pathlib import Path
from controller.host.malloc import keep_heap_small, return_freed_memory

def resident_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

keep_heap_small()
blocks = [bytes([1]) * 100_000 for _ in range(300)]
last, blocks = blocks[-1], None
before = resident_kib()
return_freed_memory()
print(before - resident_kib())
"""


def test_freed_memory_below_the_end_of_the_heap_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    assert int(done.stdout) > 20_000
