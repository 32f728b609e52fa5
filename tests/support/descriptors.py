# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A process that can open no more files."""

from collections.abc import Iterator
import contextlib
import os
import resource

__all__ = ("no_more_files",)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Let each ``open`` of this process fail with ``EMFILE`` for a block of code."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
