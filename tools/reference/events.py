# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Events that an agent creates in the cluster."""

from collections.abc import Iterator

from controller.kube.reasons import Reason
from tools.reference.markdown import code, table

__all__ = ("events",)


def events() -> Iterator[str]:
    """Yield the table of Events."""
    yield from table(
        ("reason", "object", "meaning"),
        ((code(each), each.about, each.meaning) for each in Reason),
    )
