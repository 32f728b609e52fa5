# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""tools/bootstrap with nothing missing, and without apt-get."""

from pathlib import Path
import shutil
import subprocess
import sys

import pytest

from tests.support.needs import skip_unless
from tests.support.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[3]
BCC = Path("/usr/lib/python3/dist-packages/bcc/libbcc.py")
DEMO_PROGRAMS = ("nginx", "ffmpeg", "stress-ng")
TEST_PROGRAMS = (
    *("iperf3", "nft", "prometheus", "etcd", "kubectl", "openssl"),
    *("gcc", "pkg-config", "busybox", "fish", "zsh", "debootstrap", "chromium-headless-shell"),
)
TEST_FILES = (Path("/usr/include/seccomp.h"), Path("/usr/lib/cni/bridge"))
FOR = pytest.mark.parametrize("step", [(), ("test",)])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with an up-to-date .venv for tests."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/bootstrap", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    stamp = subprocess.run(
        ["sh", "-c", "cksum pyproject.toml tools/bootstrap; pwd"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    (tmp_path / ".venv/.bootstrapped-dev").write_bytes(stamp.stdout)
    return tmp_path


def path_without_apt(directory: Path, programs: tuple[str, ...]) -> str:
    """Return a PATH with the programs that the script uses and with *programs*."""
    directory.mkdir()
    for name in ("sh", "dirname", "cat", "cksum", "tr", "id", "grep"):
        found = shutil.which(name)
        assert found is not None
        (directory / name).symlink_to(found)
    for name in programs:
        (directory / name).symlink_to("/bin/true")
    return str(directory)


def run(tree: Path, path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tree / "tools/bootstrap"), *arguments],
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@FOR
@skip_unless(
    all(file.exists() for file in (BCC, *TEST_FILES)),
    "python3-bpfcc, libseccomp-dev and containernetworking-plugins",
)
def test_with_nothing_missing_it_does_nothing(tree: Path, step: tuple[str, ...]) -> None:
    done = run(tree, path_without_apt(tree / "path", DEMO_PROGRAMS + TEST_PROGRAMS), *step)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@skip_unless(BCC.exists(), "python3-bpfcc")
def test_the_demonstration_does_not_need_test_programs(tree: Path) -> None:
    path = path_without_apt(tree / "path", DEMO_PROGRAMS)
    stamp = tree / ".venv/.bootstrapped"
    (tree / ".venv/.bootstrapped-dev").rename(stamp)
    done = run(tree, path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run(tree, path, "test").returncode == 1


@pytest.mark.parametrize(
    ("step", "missing"),
    [((), "ffmpeg stress-ng"), (("test",), "ffmpeg stress-ng iperf3")],
)
@skip_unless(BCC.exists(), "python3-bpfcc")
def test_without_apt_get_it_prints_the_missing_packages(
    tree: Path, step: tuple[str, ...], missing: str
) -> None:
    done = run(tree, path_without_apt(tree / "path", ("nginx", *TEST_PROGRAMS[1:])), *step)
    assert done.returncode == 1
    assert done.stderr == (
        "bootstrap: this is neither Debian nor Ubuntu; install what these packages contain by "
        f"hand: {missing}\n"
    )


def test_wrong_usage(tree: Path) -> None:
    done = run(tree, path_without_apt(tree / "path", DEMO_PROGRAMS), "everything")
    assert (done.returncode, done.stderr) == (2, "usage: tools/bootstrap [test | bench]\n")
