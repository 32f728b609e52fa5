# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A configuration as YAML with the sentence of each key above it, as a comment."""

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel
import yaml

from controller.config.fields import sentence
from controller.config.yaml_document import write_document

__all__ = ("explain_document",)


def explain_document(model: type[BaseModel], data: object) -> str:
    """Return *data*, which *model* accepts, as YAML; comments say what the keys are.

    ``parse_document`` reads equal data from it. A key that comes more than once, as in a list, is
    explained where it comes first.
    """
    lines = write_document(data).splitlines(keepends=True)
    root = yaml.compose("".join(lines), Loader=yaml.SafeLoader)
    sentences: dict[str, int] = {}
    for text, line in _keys(root, model):
        sentences.setdefault(text, line)
    above = {line: text for text, line in sentences.items()}
    return "".join(_explained(line, above.get(number)) for number, line in enumerate(lines))


def _explained(line: str, text: str | None) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return line if text is None else f"{indent}# {text}\n{line}"


def _keys(node: yaml.Node | None, annotation: Any) -> Iterator[tuple[str, int]]:
    """Yield the sentence and the line, from 0, of each key of *node* that *annotation* defines."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            field = fields[key.value]
            yield sentence(field), key.start_mark.line
            yield from _keys(value, field.annotation)
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _keys(node, arguments[0])
    elif origin is list and isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _keys(each, arguments[0])
    elif origin is dict and isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _keys(value, arguments[1])
    elif origin not in (list, dict):  # a union
        for each in arguments:
            yield from _keys(node, each)
