# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Generate the chart's schema, bounds, values and README table from the models; kustomize base."""

from collections.abc import Iterator
import json
from pathlib import Path
import re
from typing import Any

from pydantic import BaseModel
import yaml

from controller.config.explained import explain_document
from controller.config.fields import sentence
from controller.config.models import ConfigModel
from controller.config.resolve import defaults
from tools.chart.bounds import bounds
from tools.chart.kustomize import base
from tools.chart.values import ChartValues

__all__ = ("CHART", "KUSTOMIZE_BASE", "described", "generated", "main", "schema")

_DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = _DEPLOY / "chart"
KUSTOMIZE_BASE = _DEPLOY / "kustomize" / "agent.yaml"

# Keys of the agent's configuration that the chart sets itself.
_SET_BY_CHART = ("mode", "http", "http_token_file", "state_dir", "data_dir", "profiles")
_HEAD = """\
# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
#
# Generated from tools/chart/values.py: python -m tools.chart
"""
_TABLE = re.compile(r"(?<=<!-- values -->\n).*(?=<!-- /values -->)", re.DOTALL)


def schema() -> dict[str, Any]:
    """Return the JSON schema of the chart's values."""
    found = ChartValues.model_json_schema(by_alias=True)
    config = found["$defs"]["ConfigModel"]
    for name in _SET_BY_CHART:
        del config["properties"][name]
    # The chart's agents always run on a node of a cluster, so the section cannot be null.
    section = config["properties"]["kubernetes"]
    config["properties"]["kubernetes"] = {
        "$ref": "#/$defs/KubernetesModel",
        "description": section["description"],
    }
    profile = found["$defs"]["ProfileModel"]
    del profile["properties"]["name"]
    profile["required"].remove("name")
    _forbid_other_names(found)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _forbid_other_names(node: object) -> None:
    # The schema of pydantic has patterns of names and does not forbid other names.
    if isinstance(node, dict):
        if "patternProperties" in node:
            node["additionalProperties"] = False
        for each in node.values():
            _forbid_other_names(each)
    elif isinstance(node, list):
        for each in node:
            _forbid_other_names(each)


def generated() -> dict[Path, str]:
    """Return the content of each generated file."""
    readme = CHART / "README.md"
    table = "".join(_table())
    return {
        CHART / "values.schema.json": json.dumps(schema(), indent=2) + "\n",
        CHART / "files" / "bounds.json": json.dumps(bounds(ChartValues), indent=1) + "\n",
        CHART / "values.yaml": _HEAD + "".join(_yaml(ChartValues())),
        readme: _TABLE.sub(lambda _: table, readme.read_text(encoding="utf-8")),
    }


def described(model: BaseModel) -> Iterator[tuple[str, str, Any]]:
    """Yield (name, sentence, value) of each value or section of *model*."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        description = sentence(field) or (type(value).__doc__ or "").strip()
        yield field.alias or name, description, value


def _yaml(model: BaseModel, indent: str = "") -> Iterator[str]:
    for key, description, value in described(model):
        if key == "global":
            continue
        yield f"{'' if indent else chr(10)}{indent}# {description}\n"
        if isinstance(value, BaseModel):
            yield f"{indent}{key}:\n"
            yield from _yaml(value, indent + "  ")
            continue
        text = yaml.safe_dump({key: _plain(value)}, default_flow_style=False, width=10**6)
        yield from (f"{indent}{line}\n" for line in text.splitlines())
        if key == "config":
            yield from _config_keys()


def _config_keys() -> Iterator[str]:
    """Yield the keys of the agent's configuration with their defaults, as comments."""
    yield "# Its keys with their defaults; docs/REFERENCE.md has those without one as well:\n"
    data = defaults(ConfigModel, {"kubernetes": {}})
    known = {key: value for key, value in data.items() if key not in _SET_BY_CHART}
    for line in explain_document(ConfigModel, known).splitlines():
        yield f"#   {line}\n"


def _table(model: BaseModel | None = None, prefix: str = "") -> Iterator[str]:
    if model is None:
        yield "| value | default | meaning |\n|---|---|---|\n"
        model = ChartValues()
    for key, description, value in described(model):
        if isinstance(value, BaseModel):
            yield from _table(value, f"{prefix}{key}.")
        else:
            yield f"| `{prefix}{key}` | `{json.dumps(_plain(value))}` | {description} |\n"


def _plain(value: object) -> Any:
    return str(value) if isinstance(value, str) else value


def main() -> None:
    """Write the files, then the kustomize base, which is rendered from the chart."""
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
    KUSTOMIZE_BASE.write_text(base(CHART), encoding="utf-8")


if __name__ == "__main__":
    main()
