# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The objects of the chart, as Helm renders them."""

from collections.abc import Mapping
from typing import Any

from helm_python import Chart
import yaml

__all__ = ("objects", "texts")

# The chart has no default for it, because no registry has the image.
_IMAGE = {"repository": "images.internal/sweetpoint"}


def texts(chart: Chart, values: Mapping[str, Any], name: str, namespace: str) -> dict[str, str]:
    """Return the rendered files by path; *values* need not name an image.

    :raises HelmError: the schema or a template refuses the values.
    """
    image = {**_IMAGE, **values.get("image", {})}
    return chart.render({**values, "image": image}, name=name, namespace=namespace)


def objects(
    chart: Chart, values: Mapping[str, Any], name: str, namespace: str
) -> list[dict[str, Any]]:
    """Return the objects that Helm creates, hooks included."""
    return [
        each
        for path, text in texts(chart, values, name, namespace).items()
        if not path.endswith("NOTES.txt")
        for each in yaml.safe_load_all(text)
        if each is not None
    ]
