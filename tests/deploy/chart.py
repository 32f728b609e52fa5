# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The chart rendered by Helm, one case for each values file in deploy/chart/ci."""

from collections.abc import Iterable, Iterator
from functools import cache
import json
from pathlib import Path
import shutil
import tempfile
from typing import Any, NamedTuple

from helm_python import Chart, disable_logging
import kubernetes_validate
import yaml

from tests.support.chart import objects
from tools.chart.__main__ import CHART

__all__ = (
    "CASES",
    "NAMESPACE",
    "NEWEST",
    "OLDEST",
    "Case",
    "Manifest",
    "find",
    "render",
    "rendered",
    "schema_errors",
)

Manifest = dict[str, Any]

NAMESPACE = "node-agents"
# The oldest version is kubeVersion in Chart.yaml, the newest the newest of the validator.
OLDEST = "1.30"
NEWEST = kubernetes_validate.latest_version()
_OPERATOR_API = 'APIVersions.Has "monitoring.coreos.com/v1"'


class Case(NamedTuple):
    """A values file, in a cluster with or without the Prometheus operator."""

    name: str
    operator: bool


_NAMES = sorted(file.name.removesuffix("-values.yaml") for file in (CHART / "ci").iterdir())
CASES = tuple(Case(name, operator) for name in _NAMES for operator in (False, True))

disable_logging()


@cache
def rendered(case: Case) -> tuple[Manifest, ...]:
    """Return the objects of *case*, which are cached and must not be changed."""
    text = (CHART / "ci" / f"{case.name}-values.yaml").read_text()
    return tuple(render(yaml.safe_load(text), operator=case.operator))


def render(values: Manifest, *, operator: bool = False) -> Iterator[Manifest]:
    """Yield the objects that Helm renders with *values*.

    :raises HelmError: the schema or a template refuses the values.
    """
    with tempfile.TemporaryDirectory() as folder:
        chart = CHART
        if operator:
            # Offline, Helm knows only the APIs of Kubernetes: check for one of those instead.
            chart = Path(shutil.copytree(CHART, Path(folder) / "sweetpoint"))
            file = chart / "templates" / "monitoring.yaml"
            text = file.read_text()
            assert text.count(_OPERATOR_API) == 1
            file.write_text(text.replace(_OPERATOR_API, 'APIVersions.Has "apps/v1"'))
        with Chart.load(chart) as loaded:
            yield from objects(loaded, values, "sweetpoint", NAMESPACE)


def find(manifests: Iterable[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the one object of *kind*, whose name ends with *name*."""
    (found,) = (
        each
        for each in manifests
        if each["kind"] == kind and each["metadata"]["name"].endswith(name)
    )
    return found


def schema_errors(manifest: Manifest) -> list[str]:
    """Return the errors of *manifest* in the strict schemas of the oldest and newest Kubernetes.

    None for objects of other projects, for which there is no schema.
    """
    if manifest["apiVersion"] == "monitoring.coreos.com/v1":
        return []
    return list(_schema_errors(json.dumps(manifest, sort_keys=True)))


@cache
def _schema_errors(text: str) -> tuple[str, ...]:
    # By text, because most objects are the same in all cases, and the validator is slow.
    manifest, found = json.loads(text), []
    for version in (OLDEST, NEWEST):
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as e:
            found.append(f"{version}: {getattr(e, 'message', e)}")
    return tuple(found)
