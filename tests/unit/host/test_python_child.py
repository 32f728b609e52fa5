# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Children in Python run no file of the directory in which a command was started."""

import ast
from collections.abc import Iterator
from pathlib import Path
import re
import shutil
import sys

import pytest

from controller.host.python_child import python_child
from tests.support.hostile.directory import HostileDirectory

ROOT = Path(__file__).resolve().parents[3]
# Every child, with arguments that end it at once.
CHILDREN = {
    "controller.probes.bpf.compiler": (),
    "controller.doctor.trial": ("controller.probes.net",),
    "controller.demo.loadgen": ("--help",),
    "controller.demo.grower": ("0",),
    "controller.cli.main": ("--version",),
}
# Starts Python, by name or by the start method of multiprocessing.
PYTHON = re.compile(r"(.*/)?python3[0-9.]*|.*/python|spawn|forkserver")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> HostileDirectory:
    return HostileDirectory(tmp_path_factory.mktemp("home") / "of-another-user")


def nodes(*words: str) -> Iterator[tuple[Path, ast.AST]]:
    """Yield what the files of the product consist of that have one of *words*."""
    for folder in ("controller", "actuators"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text()
            if any(word in text for word in words):
                for node in ast.walk(ast.parse(text)):
                    yield file, node


def test_the_directory_would_be_imported_from(hostile: HostileDirectory) -> None:
    """Without this the other tests could not fail."""
    hostile.run(sys.executable, "-m", "controller.cli.main", "--version")
    assert "controller" in hostile.ran


@pytest.mark.parametrize("module", CHILDREN)
def test_no_child_runs_a_file_of_the_directory(module: str, hostile: HostileDirectory) -> None:
    done = hostile.run(*python_child(module, *CHILDREN[module]))
    assert "Traceback" not in done.stderr or "JSONDecodeError" in done.stderr, done.stderr
    assert hostile.ran == []


def test_a_child_works_in_the_root(hostile: HostileDirectory, tmp_path: Path) -> None:
    # A module that lies in the folder of an environment variable, which children still read.
    (tmp_path / "whereabouts.py").write_text("import os, sys; print(os.getcwd(), *sys.argv)\n")
    here = {"PYTHONPATH": str(tmp_path)}
    done = hostile.run(*python_child("whereabouts", "a", "b"), environment=here)
    assert done.stdout.split() == ["/", str(tmp_path / "whereabouts.py"), "a", "b"], done.stderr


def test_a_child_finds_a_project_that_is_not_installed(
    hostile: HostileDirectory, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "controller", copy / "controller")
    script = copy / "controller" / "host" / "python_child.py"
    # -S: without site-packages, where the tested project is installed.
    done = hostile.run(sys.executable, "-S", "-P", script, "controller.cli.main", "--help")
    assert done.stdout.startswith("usage: sweetpoint"), done.stderr
    assert hostile.ran == []


def test_python_is_started_by_the_helper_alone() -> None:
    found = {
        str(file.relative_to(ROOT))
        for file, node in nodes("executable", "python", "spawn", "forkserver")
        if (isinstance(node, ast.Attribute) and node.attr == "executable")
        or (isinstance(node, ast.alias) and node.name == "executable")
        or (isinstance(node, ast.Constant) and PYTHON.fullmatch(str(node.value)))
    }
    assert found == {"controller/host/python_child.py"}


def test_the_children_here_are_all_that_there_are() -> None:
    calls = [
        node
        for _, node in nodes("python_child")
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "python_child"
    ]
    assert {ast.literal_eval(call.args[0]) for call in calls} == set(CHILDREN)


def test_services_and_documents_name_the_console_script() -> None:
    """Its directory is searched in place of the current one, and belongs to root."""
    unit = (ROOT / "deploy/systemd/sweetpoint.service").read_text()
    assert re.findall(r"^Exec\w+=(\S+) run$", unit, re.M) == ["/opt/sweetpoint/bin/sweetpoint"]
    image = (ROOT / "deploy/Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert 'ENTRYPOINT ["/opt/sweetpoint/bin/sweetpoint"]' in image
    assert "WORKDIR" not in image
    files = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md"]
    deployed = (ROOT / "deploy").rglob("*")
    files += [file for file in deployed if file.is_file() and file.parent.name != "__pycache__"]
    imported = re.compile(r"python[0-9.]* +(-\w+ +)*-(m +(controller|actuators)|c\b)")
    assert [str(file) for file in files if imported.search(file.read_text())] == []
    for template in (ROOT / "deploy/chart/templates").iterdir():
        assert not re.search(r"^ *(workingDir|command):", template.read_text(), re.M), template
