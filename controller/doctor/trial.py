# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tries a part that the kernel may refuse, in a process of its own.

Run by the doctor with the module whose ``trial`` says whether the part works, and why not.
"""

from importlib import import_module
import sys

if __name__ == "__main__":
    works, detail = import_module(sys.argv[1]).trial()
    print(detail)
    sys.exit(not works)
