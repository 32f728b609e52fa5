# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Each value of the chart has one short sentence, which values.yaml and the README show."""

from collections.abc import Iterator

from pydantic import BaseModel
import yaml

from controller.config.fields import check
from controller.config.models import ConfigModel
from controller.config.yaml_document import parse_document
from tests.support.sentences import problems
from tools.chart.__main__ import CHART, described
from tools.chart.values import ChartValues


def sentences(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, text, value in described(model):
        yield f"{prefix}{key}", text
        if isinstance(value, BaseModel):
            yield from sentences(value, f"{prefix}{key}.")


def test_each_value_has_one_short_sentence() -> None:
    found = dict(sentences(ChartValues()))
    assert len(found) > 55
    wrong = {key: problems(text) for key, text in found.items()}
    assert not {key: why for key, why in wrong.items() if why}
    comments = (CHART / "values.yaml").read_text()
    del found["global"]
    assert not [key for key, text in found.items() if f"# {text}\n" not in comments]


def test_the_keys_of_the_configuration_in_the_comments_are_valid() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    keys = [line[1:] for line in lines if line.startswith("#   ")]
    text = "\n".join(line[3:] for line in keys)
    assert {"tick", "law", "kubernetes"} <= set(yaml.safe_load(text))
    model = check(parse_document(text, "values.yaml"), ConfigModel)
    default = ConfigModel.model_validate({"kubernetes": {}})
    assert model.model_dump() == default.model_dump()
