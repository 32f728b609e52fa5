# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Executes the steps of the Dockerfile in clean root directories, without a container engine.

Only the instructions that the Dockerfile uses are implemented; others are an error. Written by
hand, because the machines that run the tests have no container engine.
"""

from collections.abc import Iterator
import os
from pathlib import Path
import re
import shutil
import subprocess
from typing import NamedTuple

__all__ = ("Step", "build", "chroot", "context_of", "steps")

_KNOWN = frozenset(
    "FROM RUN COPY USER WORKDIR ENV ARG LABEL ENTRYPOINT CMD".split()  # noqa: SIM905
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The environment of the steps contains no configuration of this machine, for example of pip.
_ENVIRONMENT = {"PATH": _PATH, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


class Step(NamedTuple):
    """An instruction and its text, with continuation lines joined."""

    word: str
    text: str


def steps(dockerfile: str) -> Iterator[Step]:
    """Yield the instructions of *dockerfile*."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, text = line.partition(" ")
            assert word in _KNOWN, line
            yield Step(word, text.strip())


def chroot(root: Path, command: str, *, user: str = "root", folder: str = "/", **env: str) -> str:
    """Run *command* in a shell with the root directory *root* and return its output."""
    uid = next(
        line.split(":")[2]
        for line in (root / "etc" / "passwd").read_text().splitlines()
        if line.startswith(f"{user}:")
    )
    done = subprocess.run(
        [
            *("chroot", f"--userspec={uid}:{uid}", str(root)),
            *("/bin/sh", "-c", f'cd "{folder}" && {command}'),
        ],
        env=_ENVIRONMENT | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
    return done.stdout


def build(dockerfile: str, context: Path, base: Path, home: Path) -> Path:
    """Execute *dockerfile* below *home* on copies of *base*; return the root of the last stage."""
    roots: dict[str, Path] = {}
    root, user, folder = home, "root", "/"
    environment: dict[str, str] = {}
    for word, text in steps(dockerfile):
        if word == "FROM":
            root, user, folder, environment = home / f"stage{len(roots)}", "root", "/", {}
            subprocess.run(["cp", "-a", base, root], check=True)
            roots[text.split()[-1]] = root
        elif word == "RUN":
            chroot(root, text, user=user, folder=folder, **environment)
        elif word == "USER":
            user = text
        elif word == "WORKDIR":
            folder = text
        elif word == "ENV":
            environment |= dict(re.findall(r"(\w+)=(\S+)", text))
        elif word == "COPY":
            _copy(text.split(), context, roots, root)
    return root


def _copy(words: list[str], context: Path, roots: dict[str, Path], root: Path) -> None:
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    source, target = (word for word in words if not word.startswith("--"))
    start = roots[options["from"]] if "from" in options else context
    place = root / target.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    tail = "/." if (start / source.lstrip("/")).is_dir() else ""
    subprocess.run(["cp", "-a", f"{start}/{source.lstrip('/')}{tail}", place], check=True)
    if "chown" in options:
        for path in (place, *place.rglob("*")):
            os.lchown(path, *(int(each) for each in options["chown"].split(":")))


def context_of(tree: Path, home: Path) -> Path:
    """Return a copy of those files of *tree* that .dockerignore admits."""
    target = home / "context"
    for line in (tree / ".dockerignore").read_text().splitlines():
        if line.startswith("!"):
            for source in tree.glob(line[1:]):
                place = target / source.relative_to(tree)
                place.parent.mkdir(parents=True, exist_ok=True)
                ignored = shutil.ignore_patterns("__pycache__")
                if source.is_dir():
                    shutil.copytree(source, place, ignore=ignored)
                else:
                    shutil.copy2(source, place)
    return target
