# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Conversion of the ConfigMap to a configuration file and a profile, validated by the loader."""

from collections.abc import Iterable, Mapping
import os
from pathlib import Path
import sys
import tempfile
from typing import Any

import yaml

from controller.config.load import load
from controller.config.yaml_document import (
    MAX_BYTES,
    ConfigError,
    Document,
    parse_document,
    read_document,
)
from controller.host.package_data import profiles_dir
from controller.kube.koordinator.mapping import Facts, Imported, translate
from controller.kube.koordinator.source import read

__all__ = ("CONFIG_FILE", "PROFILE_FILE", "convert", "write")

PROFILE = "koordinator"
CONFIG_FILE, PROFILE_FILE = "config.yaml", f"{PROFILE}.yaml"


def convert(name: str, facts: Facts) -> dict[str, str]:
    """Return the texts of both files by file name.

    :param name: the file with the ConfigMap; ``-``: standard input.
    :raises ConfigError: the file is not such a ConfigMap, or the result is not valid.
    """
    files = _render(translate(read(_document(name), facts.labels), facts))
    _check(files, facts)
    return files


def _document(name: str) -> Document:
    if name != "-":
        return read_document(Path(name))
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        return parse_document(raw.decode("utf-8-sig"), "stdin")
    except UnicodeDecodeError:
        raise ConfigError(["stdin: not UTF-8 text"]) from None


def _render(imported: Imported) -> dict[str, str]:
    head = ["Imported from Koordinator's slo-controller-config.", ""]
    missing = ["Not imported:", *(f"  {line}" for line in imported.missing)]
    config: dict[str, Any] = {"mode": "observe", "profiles": [PROFILE_FILE], **imported.config}
    config["kubernetes"] = {"profiles": {"default": PROFILE}}
    profile = {"name": PROFILE, "indicators": _indicators(), **imported.profile}
    notes = ["Imported:", *(f"  {line}" for line in imported.notes)] if imported.notes else []
    points = "Koordinator has no limits for services: the sweet points are those of 'default'."
    return {
        CONFIG_FILE: _comments([*head, *notes, *(missing if imported.missing else ())])
        + _yaml(config),
        PROFILE_FILE: _comments([*head, points]) + _yaml(profile),
    }


def _indicators() -> dict[str, dict[str, object]]:
    data: Any = read_document(profiles_dir() / "default.yaml").data
    points: Mapping[str, Mapping[str, object]] = data["indicators"]
    return {name: {"sweet_point": each["sweet_point"]} for name, each in points.items()}


def _comments(lines: Iterable[str]) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _yaml(data: Mapping[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=False)


def _check(files: Mapping[str, str], facts: Facts) -> None:
    # With the loader of `run`. The only possible error is a device whose tiers do not fit.
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), files)
        load(Path(folder) / CONFIG_FILE, cpus=facts.cpus or 1024)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write *files* into *folder*.

    :raises OSError: a file exists already, or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    existing = [folder / name for name in files if (folder / name).exists()]
    if existing:
        raise FileExistsError(None, "exists already", str(existing[0]))
    for name, text in files.items():
        fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
