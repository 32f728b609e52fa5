# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Lists that are read in pieces: the result equals that of json.loads, or they are refused."""

from collections.abc import Iterator
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.kube.client.json_stream import ListError, read_list

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
_ITEMS = st.lists(st.dictionaries(st.text(), _JSON, max_size=4), max_size=6)
_REST = st.dictionaries(st.text().filter(lambda key: key != "items"), _JSON, max_size=4)


def pieces(text: bytes, size: int) -> Iterator[bytes]:
    return (text[at : at + size] for at in range(0, len(text), size))


def read(text: bytes, size: int = 7, longest: int = 1 << 20) -> tuple[Any, list[Any]]:
    items: list[Any] = []
    rest = read_list(pieces(text, size), items.append, longest=longest)
    return rest, items


@given(
    before=_REST,
    items=_ITEMS,
    after=_REST,
    size=st.integers(1, 100),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_a_list_does_not_depend_on_how_the_text_is_split(
    before: Any, items: Any, after: Any, size: int, ascii_only: bool, indent: int | None
) -> None:
    whole = {**before, "items": items, **after}
    text = json.dumps(whole, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    rest, found = read(text, size)
    expected = json.loads(text)
    assert found == expected.pop("items")
    assert rest == expected


@given(cut=st.integers(0, 200), size=st.integers(1, 50))
def test_an_incomplete_list_is_refused(cut: int, size: int) -> None:
    text = json.dumps({"metadata": {"a": "b"}, "items": [{"number": 12345}] * 8}).encode()
    with pytest.raises(ListError):
        read(text[: min(cut, len(text) - 1)], size)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"  ",
        b"[]",
        b"null",
        b'{"items":[1]}',
        b'{"items":[{}{}]}',
        b'{"items":[{},]}',
        b'{"items":[{"a":\xff"x"}]}',
        b'{"items" [{}]}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"items":[{"a":' + b"[" * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_text_that_is_no_list_is_refused(text: bytes) -> None:
    with pytest.raises(ListError):
        read(text, 1000)


@pytest.mark.parametrize("size", [1000, 1_000_000])
@pytest.mark.parametrize(
    "deep",
    [
        b'{"b":"]}","a":' + b"[" * 100_000 + b'"\\\\\\"}]"' + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=["arrays", "objects"],
)
def test_an_item_that_is_nested_too_deeply_is_left_out(deep: bytes, size: int) -> None:
    text = b'{"items":[{"a":1}, ' + deep + b' ,{"a":2}],"kind":"x"}'
    assert read(text, size) == ({"kind": "x"}, [{"a": 1}, {"a": 2}])


def test_a_list_without_items() -> None:
    assert read(b'{"items":null,"kind":"PodList"}') == ({"items": None, "kind": "PodList"}, [])
    assert read(b'{"items":[]}') == ({}, [])
    assert read(b"{}") == ({}, [])


def test_the_length_of_an_item_is_bounded_and_that_of_a_list_is_not() -> None:
    item = json.dumps({"a": "x" * 900}).encode()
    text = b'{"items":[' + b",".join([item] * 100) + b"]}"
    assert len(read(text, 100, longest=1000)[1]) == 100
    with pytest.raises(ListError, match="more than"):
        read(text, 100, longest=500)


def test_exceptions_of_the_handler_are_passed_on() -> None:
    def handle(_: dict[str, Any]) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        read_list([b'{"items":[{}]}'], handle, longest=100)


@pytest.mark.parametrize("number", ["1.5", "1e3", "-0.25E-2", "12345"])
def test_a_number_may_be_split_anywhere(number: str) -> None:
    text = f'{{"a": {number}, "items": [{{"b": {number}}}]}}'.encode()
    for at in range(1, len(text)):
        items: list[object] = []
        rest = read_list([text[:at], text[at:]], items.append, longest=1000)
        assert (rest, items) == ({"a": float(number)}, [{"b": float(number)}])
