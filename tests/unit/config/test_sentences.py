# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Each key of the configuration and of profiles has one short sentence, which the schemas show."""

import pytest

from controller.config.load import json_schemas
from tests.support.sentences import problems


def keys() -> dict[str, str]:
    """Map each key, with the title of its section, to its description in the JSON schemas."""
    return {
        f"{part['title']}.{key}": field.get("description", "")
        for schema in json_schemas().values()
        for part in (schema, *schema["$defs"].values())
        for key, field in part.get("properties", {}).items()
    }


def test_each_key_has_one_short_sentence() -> None:
    found = keys()
    assert len(found) > 180
    # The bounds of a quantity follow the sentence.
    wrong = {key: problems(text.partition(" From ")[0]) for key, text in found.items()}
    assert not {key: why for key, why in wrong.items() if why}


def test_no_two_keys_of_a_section_have_the_same_sentence() -> None:
    found = [(key.partition(".")[0], text) for key, text in keys().items()]
    assert len(found) == len(set(found))


def test_a_schema_has_the_bounds_of_a_quantity_after_its_sentence() -> None:
    tick = json_schemas()["config"]["properties"]["tick"]["description"]
    assert tick.startswith("Time between two control decisions")
    assert tick.endswith("From 50ms to 10s.")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("no capital here.", "does not begin with a capital or a digit"),
        ("No full stop", "does not end with a full stop"),
        ("One. Two.", "has a second sentence"),
        ("Two\nlines.", "has a line break"),
        ("A " + "word " * 24 + ".", "has more than 24 words"),
    ],
)
def test_what_is_no_sentence_is_found(text: str, why: str) -> None:
    assert why in problems(text)
