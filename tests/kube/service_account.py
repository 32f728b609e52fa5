# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The credentials of a pod at their path in the pod, written and renewed as by kubelet."""

import os
from pathlib import Path
import shlex

__all__ = ("ServiceAccountVolume",)

_MOUNTED = "/run/secrets/kubernetes.io/serviceaccount"


class ServiceAccountVolume:
    """A projected volume: ``..data`` is a link to a directory, and all files are links through it.

    Every ``write`` replaces that link atomically, so that readers see a consistent set of files
    (pkg/volume/util/atomic_writer.go).

    ``mount`` is the shell command that mounts it at the path of a pod that ``AgentRun`` starts.
    """

    def __init__(self, home: Path, authority: Path, token: str) -> None:
        self._path = home / "serviceaccount"
        self._path.mkdir()
        self._writes = 0
        self._files = {"ca.crt": authority.read_text(), "token": token}
        self.write()
        for name in self._files:
            (self._path / name).symlink_to(f"..data/{name}")
        place, volume = shlex.quote(_MOUNTED), shlex.quote(str(self._path))
        self.mount = f"mount -t tmpfs tmpfs /run; mkdir -p {place}; mount --bind {volume} {place}"

    def write(self, *, token: str | None = None, authority: str | None = None) -> None:
        """Replace the given files."""
        if token is not None:
            self._files["token"] = token
        if authority is not None:
            self._files["ca.crt"] = authority
        self._writes += 1
        data = self._path / f"..{self._writes}"
        data.mkdir()
        for name, text in self._files.items():
            (data / name).write_text(text)
        link = self._path / "..new"
        link.symlink_to(data.name)
        os.rename(link, self._path / "..data")
