# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Executes the steps of the Dockerfile in clean root directories, without a container engine.

Only the instructions that the Dockerfile uses are implemented; others are an error. Written by
hand, because the machines that run the tests have no container engine.
"""

from collections.abc import Iterator, Sequence
import contextlib
import hashlib
import os
from pathlib import Path
import re
import shutil
import subprocess
from typing import NamedTuple

__all__ = ("Built", "Step", "build", "chroot", "context_of", "steps")

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


class Built(NamedTuple):
    """The last stage: its *root* directory, and *made*, the part of it that is not in its base."""

    root: Path
    made: Path


@contextlib.contextmanager
def build(
    dockerfile: str, context: Path, bases: Sequence[Path], home: Path, kept: Path | None = None
) -> Iterator[Built]:
    """Execute *dockerfile* below *home* above *bases*, which stay as they are.

    Each stage is an overlay: copies of the bases would take longer than all steps.

    :param bases: directories; what a former one has hides what a later one has.
    :param kept: a directory for what was made before the sources are copied, as a builder of
        images keeps layers: what this depends on is its name. It is used if it is there.
    """
    with contextlib.ExitStack() as mounts:
        stages = _Stages(context, bases, home, kept, mounts)
        for step in steps(dockerfile):
            stages.execute(step)
        stages.end()
        yield Built(stages.root, stages.made)


class _Stages:
    """The stages so far; ``root`` and ``made`` are those of the last one."""

    def __init__(
        self,
        context: Path,
        bases: Sequence[Path],
        home: Path,
        kept: Path | None,
        mounts: contextlib.ExitStack,
    ) -> None:
        self.root = self.made = home
        self._context, self._bases, self._home = context, bases, home
        self._kept, self._mounts = kept, mounts
        self._roots: dict[str, Path] = {}
        # Steps of this stage that are not executed yet, because their result may be kept.
        self._waiting: list[Step] = []
        self._user, self._folder = "root", "/"
        self._environment: dict[str, str] = {}

    def execute(self, step: Step) -> None:
        """Execute *step*, or let it wait for the one that copies the sources."""
        if step.word == "FROM":
            self.end()
            self.root = self._home / f"stage{len(self._roots)}"
            self.made = self._home / f"made{len(self._roots)}"
            self._user, self._folder, self._environment = "root", "/", {}
            self._roots[step.text.split()[-1]] = self.root
        elif self._kept is not None and _copies_sources(step):
            self._restore_or_keep(self._kept)
            self._kept = None
            self._run(step)
            return
        self._waiting.append(step)
        if self._kept is None:
            self.end()

    def _restore_or_keep(self, kept: Path) -> None:
        copied = (_words(each)[0] for each in self._waiting if each.word == "COPY")
        inputs = [*(each.name for each in self._bases), *(f"{each}" for each in self._waiting)]
        inputs += [(self._context / each).read_text() for each in copied]
        place = kept / hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:16]
        if not place.exists():
            shutil.rmtree(kept, ignore_errors=True)  # of earlier versions
            with contextlib.ExitStack() as mounts:
                _mount(self._bases, kept / "new", self.root, mounts)
                for each in self._waiting:
                    self._run(each)
            (kept / "new").rename(place)
        for each in self._waiting:
            self._set(each)
        self._waiting.clear()
        _mount([place, *self._bases], self.made, self.root, self._mounts)

    def end(self) -> None:
        """Execute the steps that wait."""
        for each in self._waiting:
            if each.word == "FROM":
                _mount(self._bases, self.made, self.root, self._mounts)
            self._run(each)
        self._waiting.clear()

    def _run(self, step: Step) -> None:
        if step.word == "RUN":
            chroot(self.root, step.text, user=self._user, folder=self._folder, **self._environment)
        elif step.word == "COPY":
            _copy(step, self._context, self._roots, self.root)
        self._set(step)

    def _set(self, step: Step) -> None:
        if step.word == "USER":
            self._user = step.text
        elif step.word == "WORKDIR":
            self._folder = step.text
        elif step.word == "ENV":
            self._environment |= dict(re.findall(r"(\w+)=(\S+)", step.text))


def _mount(lower: Sequence[Path], upper: Path, root: Path, mounts: contextlib.ExitStack) -> None:
    """Let *root* show *lower*, the first above the others, and *upper* have what changes."""
    work = root.with_name(f"{root.name}-work")
    for each in (upper, root, work):
        each.mkdir(parents=True, exist_ok=True)
    directories = f"lowerdir={':'.join(map(str, lower))},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", directories, root], check=True)
    mounts.callback(subprocess.check_call, ["umount", root])


def _copies_sources(step: Step) -> bool:
    return step.word == "COPY" and _words(step)[0] == "."


def _words(step: Step) -> list[str]:
    return [word for word in step.text.split() if not word.startswith("--")]


def _copy(step: Step, context: Path, roots: dict[str, Path], root: Path) -> None:
    options = dict(word[2:].split("=", 1) for word in step.text.split() if word.startswith("--"))
    source, target = _words(step)
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
