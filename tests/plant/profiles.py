# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration of the agent, as a user writes it."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

__all__ = ("CONFIG", "ProfileKind", "read")

CONFIG = Path("/simulated/config.yaml")

_CONFIG = """\
mode: enforce
profiles: [{file}]
workloads:
- {{name: api, cgroup: /services/api, class: latency-sensitive, profile: {profile}}}
- {{name: batch, cgroup: /batch/*, class: best-effort}}
{source}law:
{law}
"""

# The service pushes its p99 of each second.
_SOURCE = """\
service_level:
  services:
    api: {push: {users: [root]}}
"""

_OBJECTIVE = """\
name: api
indicators:
  service: {sweet_point: {objective: 10ms}}
"""


class ProfileKind(StrEnum):
    """The profile of the service.

    ``objective``: an objective and nothing else, as docs/PROFILES.md shows. ``cache``: the same on
    the cache channel only. ``learned``: the shipped default after eleven minutes alone.
    """

    OBJECTIVE = "objective"
    CACHE = "cache"
    LEARNED = "learned"

    @property
    def profile(self) -> str:
        """The name of the profile."""
        return "default" if self is ProfileKind.LEARNED else "api"


def read(kind: ProfileKind, without: tuple[str, ...]) -> Callable[[Path], str]:
    """Return the reader of the files: a profile of *kind*, a law *without* some parts."""
    law = "\n".join(
        f"  {name}: {'{per_minute: 0}' if name == 'micro_probes' else 'false'}" for name in without
    )
    text = _OBJECTIVE
    if kind is ProfileKind.CACHE:
        text += "channels: [cache]\n"
    source = "" if kind is ProfileKind.LEARNED else _SOURCE
    config = _CONFIG.format(file="api.yaml", profile=kind.profile, source=source, law=law or "  {}")
    files = {CONFIG.name: config, "api.yaml": text}
    return lambda path: files[path.name]
