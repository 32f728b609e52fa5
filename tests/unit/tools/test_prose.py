# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sentences and phrases of documents are counted as a reader sees them."""

import pytest

from tools.prose import PATTERNS, long_sentences, measure, sentences

PAGE = """\
# A heading of many words is not a sentence

One sentence with `a piece of code` and [a link of
words](page.md#beside). A second one over `two
lines`!

```sh
this is code. It is not a sentence.
```

- An item: 0.5 s is one word.
  Its second sentence.
- A second item

| a name | what is what in a cell of a table with nine words |
|---|---|
"""


def test_paragraphs_items_and_long_cells_have_sentences() -> None:
    assert list(sentences(PAGE)) == [
        "One sentence with code and a link of words.",
        "A second one over code!",
        "An item: 0.5 s is one word.",
        "Its second sentence.",
        "A second item",
        "what is what in a cell of a table with nine words",
    ]


def test_a_sentence_is_long_above_a_number_of_words() -> None:
    text = " ".join(["word"] * 26) + ". " + " ".join(["word"] * 31) + "."
    found = measure(text)
    assert (found.sentences, found.over_25, found.over_30) == (2, 2, 1)
    assert found.share(found.over_30) == 0.5
    assert [len(each.split()) for each in long_sentences(text, 30)] == [31]


def test_an_empty_page_has_no_share() -> None:
    assert measure("# Only a heading\n").share(0) == 0.0


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("what is", "What is learned: the value."),
        ("that of", "The limit, or that of the parent."),
        ("own", "A limit of its own, or a service's figure."),
        ("from on", "Stalls from 0.2 ms on count."),
        (", else", "The label, else the profile."),
        ("beside", "A job beside\na service."),
        ("ceded", "The knob is ceded."),
        ("latched", "The state is latched."),
        ("in vain", "The squeeze is in vain."),
        ("brings", "Measure what each part brings."),
    ],
)
def test_unclear_phrases_are_found(phrase: str, text: str) -> None:
    assert {name: count for name, count in measure(text).found.items() if count} == {phrase: 1}
    assert phrase in PATTERNS


@pytest.mark.parametrize(
    "text", ["From the start on the node", "It runs from 3 to 5 on v2", "Or else"]
)
def test_plain_phrases_are_not(text: str) -> None:
    assert not any(measure(text).found.values())
