# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One cgroup, held by a directory fd whose kernfs id was checked."""

from pathlib import Path
from typing import ClassVar

from actuators.kernfs import Directory
from controller.model import Target

__all__ = ("Cgroup",)


class Cgroup(Directory):
    """One open cgroup; use as a context manager. Errors as ``kernfs.Directory``.

    :param mount: where the hierarchy is mounted.
    :param target: ``path`` is followed below the mount, ``id`` is the kernfs id to find there.
    """

    noun: ClassVar[str] = "cgroup"
    always: ClassVar[str] = "cgroup.procs"

    def __init__(self, mount: Path, target: Target) -> None:
        super().__init__(mount, target.path, target.id)
