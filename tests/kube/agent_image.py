# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's image, built by the steps of its Dockerfile, for the containerd of a test."""

from collections.abc import Iterator
import contextlib
import fcntl
import hashlib
import json
import os
from pathlib import Path
import re
import shutil
import subprocess

from tests.deploy.clean_root import build, chroot, context_of, steps
from tests.kube.images import make_layer, save_layers

__all__ = ("AGENT_IMAGE", "build_agent_image")

AGENT_IMAGE = "example.org/sweetpoint:local"
_TREE = Path(__file__).parents[2]
_DOCKERFILE = (_TREE / "deploy" / "Dockerfile").read_text()
_LOCK_FILES = tuple(
    _TREE / "deploy" / name for name in ("requirements.txt", "requirements-build.txt")
)
# Of the base, in its directory of the cache.
_ROOT, _LAYER, _WHEELS = "root", "root.tar", "wheels"
_APT_INSTALL = re.compile(r"apt-get install -y --no-install-recommends ([^&]+)")


def build_agent_image(home: Path) -> Path:
    """Build the image below *home* and return it as an archive.

    Its base already has the packages that the Dockerfile installs. The base, and what is made
    before the sources are copied, are kept in the cache. The wheels that the Dockerfile fetches lie
    in a layer that the image does not get.
    """
    with _locked() as cache:
        base = _base(cache)
        bases = (base / _WHEELS, base / _ROOT)
        with build(_DOCKERFILE, context_of(_TREE, home), bases, home, cache / "kept") as built:
            hidden = [path for path in built.made.rglob("*") if path.is_char_device()]
            assert not hidden, f"an image of two layers cannot say that these are gone: {hidden}"
            own = make_layer(built.made, home / "own.tar")
        archive = home / "sweetpoint.tar"
        save_layers(archive, AGENT_IMAGE, _config(), [base / _LAYER, own])
    own.unlink()
    for stage in (*home.glob("stage*"), *home.glob("made*")):
        shutil.rmtree(stage)
    return archive


def _config() -> dict[str, object]:
    environment = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    config: dict[str, object] = {"Env": environment}
    for word, text in steps(_DOCKERFILE):
        if word == "FROM":
            del environment[1:]
        elif word == "ENV":
            environment += re.findall(r"\w+=\S+", text)
        elif word in ("ENTRYPOINT", "CMD"):
            config[{"ENTRYPOINT": "Entrypoint", "CMD": "Cmd"}[word]] = json.loads(text)
    return config


@contextlib.contextmanager
def _locked() -> Iterator[Path]:
    """Yield the directory of the cache, which no other process of the tests uses meanwhile."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sweetpoint/image"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def _base(cache: Path) -> Path:
    """Return a directory with the root directory, a layer of it, and a root with the wheels."""
    texts = [found[1] for step in steps(_DOCKERFILE) if (found := _APT_INSTALL.search(step.text))]
    words = " ".join(texts).split()
    packages = sorted({word.strip("'").partition("=")[0] for word in words})
    assert "python3-bpfcc" in packages
    inputs = " ".join([*packages, *(file.read_text() for file in _LOCK_FILES)])
    base = cache / hashlib.sha256(f"layers {inputs}".encode()).hexdigest()[:16]
    if not base.exists():
        for old in (each for each in cache.iterdir() if each.is_dir()):  # of earlier versions
            shutil.rmtree(old)
        (cache / "build").mkdir()
        _make_base(cache / "build", packages)
        (cache / "build").rename(base)
    return base


def _make_base(base: Path, packages: list[str]) -> None:
    root, wheels = base / _ROOT, base / _WHEELS
    include = ",".join(["ca-certificates", *packages])
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={include}", "bookworm", root],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert made.returncode == 0, made.stdout[-2000:]
    # The packages may be reachable only through a proxy with a certificate of its own.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc" / "ssl" / "certs")
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    chroot(root, "python3 -m venv /tmp/pip")
    for file in _LOCK_FILES:
        shutil.copy(file, root / "tmp")
        options = "--require-hashes --only-binary :all: --dest /wheels"
        chroot(root, f"/tmp/pip/bin/pip download {options} --requirement /tmp/{file.name}")
    wheels.mkdir()
    (root / "wheels").rename(wheels / "wheels")
    (wheels / "etc").mkdir()
    (wheels / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    # The Dockerfile removes these; see the assertion above.
    chroot(root, "rm -rf /tmp/* /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log")
    make_layer(root, base / _LAYER)
