# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Paths of the data files of the package: BPF sources and shipped profiles.

In an installed package they are data of ``controller`` (see package-dir in pyproject.toml), in a
source tree the folders ``bpf/`` and ``profiles/`` beside ``controller/``.
"""

from importlib.resources import files
from pathlib import Path

__all__ = ("bpf_dir", "profiles_dir")


def bpf_dir() -> Path:
    """Return the folder with the BPF programs and, in ``include/``, the stub header tree.

    :raises FileNotFoundError: the installation is incomplete.
    """
    return _data_dir("bpf")


def profiles_dir() -> Path:
    """Return the folder with the shipped profiles.

    :raises FileNotFoundError: the installation is incomplete.
    """
    return _data_dir("profiles")


def _data_dir(name: str) -> Path:
    package = Path(str(files("controller")))
    for candidate in (package / f"_{name}", package.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"{name}: not in {package} nor beside it; install sweetpoint again")
