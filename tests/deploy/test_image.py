# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The image: its Dockerfile and lock files, and the image built in a clean root."""

from collections.abc import Iterator
from importlib.metadata import requires
import json
import os
from pathlib import Path
import re
import shutil
import subprocess
import tomllib

from packaging.requirements import Requirement
from packaging.version import Version
import pytest

from tests.deploy.clean_root import build, chroot, context_of, steps
from tests.support.needs import all_is_required

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
LOCK = (ROOT / "deploy" / "requirements.txt").read_text()
# A package with its version and hashes.
_PINNED = re.compile(
    r"^([a-z0-9-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", re.M
)


def locked() -> dict[str, Version]:
    """Return every locked package; each has at least one hash."""
    return {name: Version(version) for name, version, _ in _PINNED.findall(LOCK)}


def test_every_line_of_the_lock_is_a_version_with_hashes() -> None:
    rest = _PINNED.sub("", LOCK)
    assert [line for line in rest.splitlines() if line and not line.startswith("#")] == []


def test_the_dependencies_of_the_project_are_locked_in_suitable_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"]["top"]):
        requirement = Requirement(text)
        assert locked()[requirement.name.lower()] in requirement.specifier, text


def test_the_dependencies_of_locked_packages_are_locked() -> None:
    # Checked with the metadata of the installed versions, which may differ from the locked ones.
    for name in locked():
        for text in requires(name) or ():
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert need.name.lower().replace("_", "-") in locked(), f"{name} needs {text}"


def test_the_instructions_of_the_dockerfile() -> None:
    found = list(steps(DOCKERFILE))
    assert [each.word for each in found].count("FROM") == 2
    # Without a default: the base is named by its digest.
    assert found[0] == ("ARG", "BASE")
    assert all("${BASE}" in each.text for each in found if each.word == "FROM")
    assert "HEALTHCHECK" not in {each.word for each in found}
    (label,) = (each.text for each in found if each.word == "LABEL")
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in label
    for each in found:
        if "pip install" in each.text and "--requirement" in each.text:
            assert "--require-hashes" in each.text


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root directory of the image, built on a new Debian."""
    possible = os.geteuid() == 0 and shutil.which("debootstrap") is not None
    if not (possible or all_is_required()):
        pytest.skip("needs root and debootstrap")
    home = tmp_path_factory.mktemp("image")
    base = home / "base"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", base],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert made.returncode == 0, made.stdout[-2000:]
    (base / "etc" / "apt" / "apt.conf.d" / "80retries").write_text('Acquire::Retries "3";\n')
    shutil.copy("/etc/resolv.conf", base / "etc" / "resolv.conf")
    # The packages may be reachable only through a proxy with a certificate of its own.
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", base / "etc" / "ssl" / "certs")
    try:
        with build(DOCKERFILE, context_of(ROOT, home), [base], home) as built:
            yield built.root
    finally:
        shutil.rmtree(home)


@pytest.mark.soak
def test_the_image_can_be_built_and_runs(image: Path) -> None:
    help_text = chroot(image, "/opt/sweetpoint/bin/sweetpoint --help")
    assert "the agent: measure, plan" in help_text
    # bcc is importable, with the numpy of the image and not the distribution's.
    text = chroot(image, "/opt/sweetpoint/bin/python -c 'import bcc, numpy; print(numpy.__file__)'")
    assert text.startswith("/opt/sweetpoint/")
    # The package data are installed: programs, headers, profiles.
    show = "from controller.host.package_data import profiles_dir as p; print(*p().iterdir())"
    assert "nginx.yaml" in chroot(image, f"/opt/sweetpoint/bin/python -c '{show}'")


@pytest.mark.soak
def test_every_module_has_bytecode_that_does_not_depend_on_times(image: Path) -> None:
    packages = image / "opt/sweetpoint/lib/python3.11/site-packages"
    modules = [
        path for name in ("controller", "pydantic") for path in (packages / name).rglob("*.py")
    ]
    assert len(modules) > 200
    for path in modules:
        compiled = path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc"
        # PEP 552: the flags after the magic number; 1 is a hash that is not checked.
        assert int.from_bytes(compiled.read_bytes()[4:8], "little") == 1, path


@pytest.mark.soak
def test_the_image_has_a_complete_bill_of_materials(image: Path) -> None:
    bill = json.loads((image / "usr/share/sweetpoint/sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    found = {each["purl"].partition("?")[0]: each["version"] for each in bill["components"]}
    assert len(found) == len(bill["components"])
    for name, version in locked().items():
        assert Version(found[f"pkg:pypi/{name}@{version}"]) == version
    names = {purl.partition("@")[0] for purl in found}
    assert {"pkg:deb/debian/python3-bpfcc", "pkg:deb/debian/libc6", "pkg:pypi/sweetpoint"} <= names
    assert "pkg:pypi/pip" not in names


@pytest.mark.soak
def test_the_installed_files_are_read_only_and_not_owned_by_root(image: Path) -> None:
    for path in (image / "opt" / "sweetpoint").rglob("*"):
        info = path.lstat()
        assert info.st_uid == 65532, path
        assert path.is_symlink() or not info.st_mode & 0o222, path
    assert not (image / "src").exists()
