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
from tests.kube.images import save_root

__all__ = ("AGENT_IMAGE", "build_agent_image")

AGENT_IMAGE = "example.org/sweetpoint:local"
_TREE = Path(__file__).parents[2]
_DOCKERFILE = (_TREE / "deploy" / "Dockerfile").read_text()
_LOCK_FILES = tuple(
    _TREE / "deploy" / name for name in ("requirements.txt", "requirements-build.txt")
)
# In the base.
_WHEELS, _PIP_CONFIG = "wheels", "etc/pip.conf"
_APT_INSTALL = re.compile(r"apt-get install -y --no-install-recommends ([^&]+)")


def build_agent_image(home: Path) -> Path:
    """Build the image below *home* and return it as an archive.

    Its base already has the packages that the Dockerfile installs, and the wheels that it fetches.
    Base, and root before the sources are copied, are kept in the cache.
    """
    with _locked() as cache:
        base = _base(cache)
        root = build(_DOCKERFILE, context_of(_TREE, home), base, home, cache / "kept")
    for path in (_WHEELS, _PIP_CONFIG):
        subprocess.run(["rm", "-r", root / path], check=True)
    archive = save_root(home / "sweetpoint.tar", AGENT_IMAGE, _config(), [root])
    for stage in home.glob("stage*"):
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
    texts = [found[1] for step in steps(_DOCKERFILE) if (found := _APT_INSTALL.search(step.text))]
    words = " ".join(texts).split()
    packages = sorted({word.strip("'").partition("=")[0] for word in words})
    assert "python3-bpfcc" in packages
    inputs = " ".join([*packages, *(file.read_text() for file in _LOCK_FILES)])
    base = cache / hashlib.sha256(inputs.encode()).hexdigest()[:16]
    if not base.exists():
        _make_base(cache / "build", packages)
        (cache / "build").rename(base)
    return base


def _make_base(root: Path, packages: list[str]) -> None:
    shutil.rmtree(root, ignore_errors=True)
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
    (root / _WHEELS).mkdir()
    chroot(root, "python3 -m venv /tmp/pip")
    for file in _LOCK_FILES:
        shutil.copy(file, root / "tmp")
        options = f"--require-hashes --only-binary :all: --dest /{_WHEELS}"
        chroot(root, f"/tmp/pip/bin/pip download {options} --requirement /tmp/{file.name}")
    subprocess.run(["rm", "-r", root / "tmp/pip"], check=True)
    (root / _PIP_CONFIG).write_text(f"[global]\nno-index = true\nfind-links = /{_WHEELS}\n")
