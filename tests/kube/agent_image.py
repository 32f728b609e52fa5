# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's image, built by the steps of its Dockerfile, for the containerd of a test."""

import fcntl
import hashlib
import json
import os
from pathlib import Path
import re
import shutil
import subprocess

from tests.deploy.clean_root import build, context_of, steps
from tests.kube.images import save_root

__all__ = ("AGENT_IMAGE", "build_agent_image")

AGENT_IMAGE = "example.org/sweetpoint:local"
_TREE = Path(__file__).parents[2]
_DOCKERFILE = (_TREE / "deploy" / "Dockerfile").read_text()
_APT_INSTALL = re.compile(r"apt-get install -y --no-install-recommends ([^&]+)")


def build_agent_image(home: Path) -> Path:
    """Build the image below *home* and return it as an archive.

    Its base already has the packages that the Dockerfile installs, and is kept in the cache.
    """
    base = _base()
    shutil.copy("/etc/resolv.conf", base / "etc" / "resolv.conf")
    root = build(_DOCKERFILE, context_of(_TREE, home), base, home)
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


def _base() -> Path:
    texts = [found[1] for step in steps(_DOCKERFILE) if (found := _APT_INSTALL.search(step.text))]
    words = " ".join(texts).split()
    packages = sorted({word.strip("'").partition("=")[0] for word in words})
    assert "python3-bpfcc" in packages
    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sweetpoint/image"
    cache.mkdir(parents=True, exist_ok=True)
    base = cache / key
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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
