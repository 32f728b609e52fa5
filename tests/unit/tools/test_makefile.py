# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Each test lies where one of the stages in the Makefile looks for it."""

from pathlib import Path
import re

TREE = Path(__file__).parents[3]
MAKEFILE = (TREE / "Makefile").read_text()
_MARKED = re.compile(r"^(pytestmark = .*|@pytest\.)mark\.(kernel|kube|vm)\b", re.M)


def folders(name: str) -> list[Path]:
    """Return the folders in the variable *name*."""
    match = re.search(rf"^{name} := (.+)$", MAKEFILE, re.M)
    assert match
    return [TREE / each for each in match[1].split()]


def test_every_test_is_in_a_folder_of_its_stage() -> None:
    pure, kernel = folders("PURE_IN"), folders("KERNEL_IN")
    kernel += [TREE / "tests/kube", TREE / "tests/vm"]
    assert "$(KERNEL_IN) tests/kube tests/vm\n" in MAKEFILE
    found = {True: 0, False: 0}
    for path in (TREE / "tests").rglob("test_*.py"):
        # Measurements, and a file with the texts of other tests.
        if path.parent.name == "bench" or path == TREE / "tests/unit/test_conftest.py":
            continue
        needs_kernel = _MARKED.search(path.read_text()) is not None
        where = kernel if needs_kernel else [*pure, *kernel]
        assert any(path.is_relative_to(each) for each in where), path
        found[needs_kernel] += 1
    assert min(found.values()) > 50
