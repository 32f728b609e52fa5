# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of ``sweetpoint explain`` share; the fixture ``explain`` is in ``conftest``."""

from collections.abc import Callable
import json
from typing import Any

__all__ = ("START", "Explain", "incidents")

START = "2020-01-01T00:00:00+00:00"
Explain = Callable[..., str]


def incidents(explain: Explain, name: str, kind: str) -> list[dict[str, Any]]:
    """Return the incidents of one kind that the JSON of *name* has."""
    found = json.loads(explain(name, "--json", "--since", START))["incidents"]
    return [each for each in found if each["kind"] == kind]
