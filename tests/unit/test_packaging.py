# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel contains every module, the BPF sources and the profiles; the code finds its data."""

from pathlib import Path
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

from controller.host.package_data import bpf_dir, profiles_dir
from tests.support.waiting import WORK_S

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "controller", "actuators", "bpf", "profiles")
SHOW = """
import sys
sys.path.insert(0, sys.argv[1])
import controller.config.load
from controller.host import package_data
print(package_data.bpf_dir())
print(package_data.profiles_dir())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, because a build leaves files in its source tree."""
    source = tmp_path_factory.mktemp("source")
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, source / part, ignore=ignore)
        else:
            shutil.copy(ROOT / part, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WORK_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr
    (built,) = (source / "dist").glob("*.whl")
    return built


def relative_files(top: Path, *patterns: str) -> set[str]:
    return {str(p.relative_to(top)) for pattern in patterns for p in top.rglob(pattern)}


def test_the_wheel_contains_every_module(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("controller", "actuators"):
        modules = {f"{package}/{name}" for name in relative_files(ROOT / package, "*.py")}
        assert modules <= names, "name the new package in pyproject.toml, tool.setuptools"


def test_installed_package_finds_its_data(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path), str(wheel)], check=True, timeout=WORK_S)
    shown = subprocess.run(
        [sys.executable, "-c", SHOW, str(tmp_path)],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=WORK_S,
        check=True,
    )
    bpf, profiles = (Path(line) for line in shown.stdout.splitlines())
    assert bpf == tmp_path / "controller" / "_bpf"
    sources = relative_files(bpf, "*.c", "*.h")
    assert sources == relative_files(ROOT / "bpf", "*.c", "*.h")
    assert "include/kernel/include/linux/kconfig.h" in sources
    assert relative_files(profiles, "*.yaml") == relative_files(ROOT / "profiles", "*.yaml")


def test_source_tree_finds_its_data() -> None:
    assert bpf_dir() == ROOT / "bpf"
    assert profiles_dir() == ROOT / "profiles"


def test_every_package_has_a_layer() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    rooms = next(c for c in contracts["contracts"] if c["name"].startswith("Rooms"))
    placed = set(re.findall(r"controller\.(\w+)", " ".join(rooms["layers"])))
    tree = ROOT / "controller"
    assert placed == {path.parent.name for path in tree.glob("*/*.py")}
    assert [path.name for path in tree.glob("*.py")] == ["__init__.py"]
