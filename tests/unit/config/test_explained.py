# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A configuration with the sentence of each key above the key's first place."""

from pathlib import Path
import re

from controller.config.explained import explain_document
from controller.config.fields import sentence
from controller.config.models import ConfigModel, WorkloadModel
from controller.config.resolve import resolve
from controller.config.yaml_document import parse_document

CONFIG = """\
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive}
  - {name: "jobs # 1", cgroup: /jobs, class: best-effort}
network: {devices: [{name: eth0}]}
io: {disks: {/dev/sda: {read: 1GB/s, write: 500MB/s}}}
"""


def explained(tmp_path: Path) -> tuple[str, object]:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.replace("jobs # 1", "jobs"))
    data = resolve(file)[1]
    data["workloads"][1]["name"] = "jobs # 1"
    return explain_document(ConfigModel, data), data


def test_the_data_stay_the_same(tmp_path: Path) -> None:
    text, data = explained(tmp_path)
    assert parse_document(text, "x").data == data


def test_each_key_has_its_sentence_above_its_first_place(tmp_path: Path) -> None:
    lines = explained(tmp_path)[0].splitlines()
    comments = [line.lstrip() for line in lines if re.match(r" *# ", line)]
    assert len(comments) == len(set(comments)) > 70
    name = f"# {sentence(WorkloadModel.model_fields['name'])}"
    assert lines[lines.index(name) + 1] == "- name: web"
    # In a mapping whose keys are names, and in a section that may be missing.
    assert lines[lines.index("      read: 1GB/s") - 1].startswith("      # Bytes per second")
    assert lines[lines.index("  - name: eth0") - 1].startswith("  # Name of the link")


def test_every_key_of_the_file_is_explained(tmp_path: Path) -> None:
    lines = explained(tmp_path)[0].splitlines()
    top = [number for number, line in enumerate(lines) if re.match(r"[a-z_]+:", line)]
    assert len(top) > 15
    assert all(lines[number - 1].startswith("# ") for number in top)
