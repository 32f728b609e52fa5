# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The kustomize base: the chart with its default values, without labels and hooks of Helm."""

from pathlib import Path
from typing import Any

from helm_python import Chart
import yaml

__all__ = ("base",)

_NAMESPACE = "sweetpoint-system"
_HELM_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")
_HEAD = """\
# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
#
# Generated from the chart, whose templates have the comments: python -m tools.chart
"""


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as block scalars."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else "")


_Dumper.add_representer(str, _text)


def base(chart: Path) -> str:
    """Return the objects of *chart* as the text of one file."""
    with Chart.load(chart) as loaded:
        # The uninstall Job is a hook, which only Helm executes.
        # An overlay sets the image.
        values = {"uninstall": {"enabled": False}, "image": {"repository": "sweetpoint"}}
        files = loaded.render(values, name="sweetpoint", namespace=_NAMESPACE)
    objects = [
        each
        for name, text in sorted(files.items())
        if not name.endswith("NOTES.txt")
        for each in yaml.safe_load_all(text)
    ]
    return _HEAD + "---\n".join(
        yaml.dump(_without_helm(each), Dumper=_Dumper, sort_keys=False, width=100)
        for each in objects
        if each is not None
    )


def _without_helm(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_helm(each) for key, each in node.items() if key not in _HELM_LABELS}
    if isinstance(node, list):
        return [_without_helm(each) for each in node]
    return node
