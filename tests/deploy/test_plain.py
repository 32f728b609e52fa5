# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Deployment without Helm: the kustomize base, and the systemd unit."""

from pathlib import Path
import subprocess

import yaml

from controller.config.sections.service_models import ServiceLevelModel
from tests.deploy.chart import schema_errors
from tests.support.needs import needs_program
from tools.chart.__main__ import CHART, KUSTOMIZE_BASE
from tools.chart.kustomize import base

_DIRECTORIES = "RuntimeDirectory="
_CAPABILITIES = "CapabilityBoundingSet="

UNIT = CHART.parent / "systemd" / "sweetpoint.service"


def test_the_base_is_up_to_date() -> None:
    assert KUSTOMIZE_BASE.read_text() == base(CHART), "run: .venv/bin/python -m tools.chart"


@needs_program("kubectl")
def test_kustomize_renders_valid_objects() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", KUSTOMIZE_BASE.parent], capture_output=True, text=True, check=True
    )
    objects = list(yaml.safe_load_all(done.stdout))
    assert [problem for each in objects for problem in schema_errors(each)] == []
    kinds = {each["kind"] for each in objects}
    assert {"Namespace", "DaemonSet", "ClusterRole", "ValidatingAdmissionPolicy"} <= kinds
    for each in objects:
        assert each["metadata"].get("namespace", "sweetpoint-system") == "sweetpoint-system"
    assert "helm" not in done.stdout.lower()


@needs_program("systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # systemd-analyze checks that the program exists.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/sweetpoint/bin/sweetpoint", "/bin/true"))
    good = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (good.returncode, good.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("KillMode=", "KilMode="))
    bad = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert "KilMode" in bad.stderr


def test_the_unit_keeps_knobs_writable_and_the_journal() -> None:
    lines = set(UNIT.read_text().splitlines())
    assert {"KillMode=mixed", "RuntimeDirectoryPreserve=yes", "RestartPreventExitStatus=2"} <= lines
    assert {"Restart=on-failure", "StartLimitIntervalSec=0"} <= lines  # no error is for good
    # After the death of both; without the minus its failure would be one of the unit.
    assert "ExecStopPost=-/opt/sweetpoint/bin/sweetpoint release" in lines
    for breaking in ("ProtectControlGroups", "ProtectKernelTunables", "MemoryDenyWriteExecute"):
        assert not any(line.startswith(f"{breaking}=") for line in lines)


def test_services_reach_the_push_socket() -> None:
    lines = UNIT.read_text().splitlines()
    (made,) = (line for line in lines if line.startswith(_DIRECTORIES))
    directory = Path(ServiceLevelModel.model_fields["socket"].default).parent
    assert directory.parent == Path("/run")
    assert directory.name in made.removeprefix(_DIRECTORIES).split()
    assert "RuntimeDirectoryMode=0755" in lines
    # For service_level.socket_group.
    (kept,) = (line for line in lines if line.startswith(_CAPABILITIES))
    assert "CAP_CHOWN" in kept.removeprefix(_CAPABILITIES).split()
