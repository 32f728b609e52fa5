# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Generator of docs/REFERENCE.md: from commands to Events."""

from collections.abc import Iterator
from pathlib import Path

from tools.reference.commands import commands
from tools.reference.events import events
from tools.reference.fields import fields
from tools.reference.kernel import indicators, knobs
from tools.reference.metrics import metrics

__all__ = ("OUTPUT", "text")

OUTPUT = Path(__file__).parents[2] / "docs" / "REFERENCE.md"
_HEAD = """\
# Reference

Generated from the code by `make reference`. What the values mean in use:
[CONFIGURATION.md](CONFIGURATION.md), [PROFILES.md](PROFILES.md), [OPERATIONS.md](OPERATIONS.md),
[DASHBOARD.md](DASHBOARD.md).

- [Commands](#commands)
- [Configuration](#configuration)
- [Profiles](#profiles)
- [Indicators](#indicators)
- [Knobs](#knobs)
- [Metrics](#metrics)
- [Events](#events)
"""


def text() -> str:
    """Return the document."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    from controller.config.models import ConfigModel, ProfileModel

    yield _HEAD
    for title, part in (
        ("Commands", commands()),
        ("Configuration", fields(ConfigModel)),
        ("Profiles", fields(ProfileModel)),
        ("Indicators", indicators()),
        ("Knobs", knobs()),
        ("Metrics", metrics()),
        ("Events", events()),
    ):
        yield f"## {title}\n"
        yield from part
        yield ""


if __name__ == "__main__":
    OUTPUT.write_text(text(), encoding="utf-8")
