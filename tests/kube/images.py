# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Container images as archives that containerd imports, made without a container engine.

The format is that of `docker save`: layers as tar files, a configuration with their digests, and a
manifest (github.com/moby/docker-image-spec).
"""

from collections.abc import Mapping, Sequence
import hashlib
import io
import json
from pathlib import Path
import subprocess
import tarfile

__all__ = ("make_layer", "save_files", "save_layers")


def save_files(
    archive: Path, name: str, command: Sequence[str], files: Mapping[str, Path | str]
) -> Path:
    """Write an image to *archive* with *files* by their path in the image; return *archive*.

    :param files: an executable file, or the target of a symbolic link.
    """
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as content:
        for folder in ("bin", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            content.addfile(entry)
        for path, source in files.items():
            entry = tarfile.TarInfo(path)
            entry.mode = 0o755
            if isinstance(source, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, source
                content.addfile(entry)
            else:
                data = source.read_bytes()
                entry.size = len(data)
                content.addfile(entry, io.BytesIO(data))
    config = {"Entrypoint": list(command), "Env": ["PATH=/bin"]}
    save_layers(archive, name, config, [layer])
    layer.unlink()
    return archive


def make_layer(root: Path, layer: Path) -> Path:
    """Write *layer*, a tar file with the directory *root*, and return it."""
    subprocess.run(
        ["tar", "--create", "--one-file-system", f"--file={layer}", f"--directory={root}", "."],
        check=True,
    )
    return layer


def save_layers(
    archive: Path, name: str, config: Mapping[str, object], layers: Sequence[Path]
) -> Path:
    """Write an image of *layers*, tar files, the lowest first, to *archive*; return *archive*.

    :param config: the image's configuration: ``Entrypoint``, ``Cmd``, ``Env``.
    """
    # The layers, which may be large, are copied into the archive and not held in memory.
    digests = [_digest(layer) for layer in layers]
    description = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    described = json.dumps(description).encode()
    config_name = f"{hashlib.sha256(described).hexdigest()}.json"
    names = [f"{digest}.tar" for digest in digests]
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": names}]).encode()
    with tarfile.open(archive, "w") as image:
        for layer, layer_name in zip(layers, names, strict=True):
            image.add(layer, layer_name)
        for path, data in ((config_name, described), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            image.addfile(entry, io.BytesIO(data))
    return archive


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
