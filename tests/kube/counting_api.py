# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's API client, which counts the objects and the lists that it read."""

from collections.abc import Callable, Mapping
from typing import Any

from controller.kube.client.api import Api

__all__ = ("CountingApi",)


class CountingApi(Api):
    """``gets`` and ``lists`` are the numbers of objects and lists that were read completely."""

    gets = lists = 0

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Get as ``Api`` does, and count."""
        found = super().get(path, query)
        self.gets += 1
        return found

    def items(
        self, path: str, query: Mapping[str, str], handle: Callable[[dict[str, Any]], object]
    ) -> str:
        """List as ``Api`` does, and count."""
        version = super().items(path, query, handle)
        self.lists += 1
        return version
