# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Streaming parser for lists of the API server: one object at a time, in bounded memory.

A list of 1,000 pods is 10 MiB of JSON or more, for which json.loads() needs about 100 MiB.

The parser is written by hand on the decoder of the standard library: a library such as ijson would
add a C extension to a privileged agent for one JSON shape.
"""

import codecs
from collections.abc import Callable, Iterable
import json
import logging
import re
from typing import Any

from controller.kube.client.rate_limit import RateLimitedLogger

__all__ = ("ListError", "read_list")

_log = RateLimitedLogger(logging.getLogger(__name__))

# A string, the begin of one that goes on beyond the text, or a bracket.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]')
_WHITE = " \t\r\n"
# The characters that can follow a value.
_AFTER = _WHITE + ",:}]"


class _TooDeepError(Exception):
    """A value is nested too deeply for the decoder."""


class ListError(Exception):
    """The text is not a list of objects as the API server sends it."""


def read_list(
    chunks: Iterable[bytes], handle: Callable[[dict[str, Any]], object], *, longest: int
) -> dict[str, Any]:
    """Call *handle* with each item of a list while it is read; return the list without its items.

    An item that is nested too deeply is left out: one list may have objects of all tenants.
    Exceptions of *handle* are passed on.

    :param longest: the maximum length of an item in characters.
    :raises ListError: the text is not such a list.
    """
    text = _Text(chunks, longest)
    try:
        return _read(text, handle)
    except _TooDeepError:
        raise ListError("nested too deeply") from None


def _read(text: "_Text", handle: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    text.expect("{")
    if text.next_is("}"):
        return rest
    while True:
        key = text.value()
        text.expect(":")
        if key == "items" and text.next_is("["):
            _read_items(text, handle)
        else:
            rest[str(key)] = text.value()
        if text.next_is("}"):
            return rest
        text.expect(",")


def _read_items(text: "_Text", handle: Callable[[dict[str, Any]], object]) -> None:
    if text.next_is("]"):
        return
    while True:
        try:
            item = text.value()
        except _TooDeepError:
            _log.warning("an object in a list is nested too deeply: left out")
            text.skip()
        else:
            if not isinstance(item, dict):
                raise ListError("an item that is not an object")
            handle(item)
        if text.next_is("]"):
            return
        text.expect(",")


class _Text:
    def __init__(self, chunks: Iterable[bytes], longest: int) -> None:
        self._chunks = iter(chunks)
        self._longest = longest
        self._bytes = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()
        self._text = ""
        self._at = 0

    def next_is(self, character: str) -> bool:
        """Skip *character* and return True if it is the next one after white space."""
        self._skip_white()
        found = self._text[self._at] == character
        self._at += found
        return found

    def expect(self, character: str) -> None:
        if not self.next_is(character):
            raise ListError(f"{self._text[self._at]!r} instead of {character!r}")

    def value(self) -> Any:
        self._skip_white()
        while True:
            try:
                found, end = self._json.raw_decode(self._text, self._at)
            except RecursionError:
                raise _TooDeepError from None
            except ValueError:
                end = len(self._text)
            # A number at the end of the text, or before a point or an exponent, may be incomplete.
            if end < len(self._text) and self._text[end] in _AFTER:
                self._at = end
                return found
            # The amount doubles each time, so that parsing an incomplete value repeatedly takes
            # time linear in its length.
            self._fill(len(self._text) - self._at)

    def skip(self) -> None:
        """Skip the next object or array, however deeply it is nested."""
        while (end := self._end_of_value()) is None:
            self._fill(len(self._text) - self._at)
        self._at = end

    def _end_of_value(self) -> int | None:
        """Return where the value ends that begins here; ``None``: beyond the text."""
        depth = 0
        for token in _TOKEN.finditer(self._text, self._at):
            if token[0] == '"':
                return None
            depth += (token[0] in "{[") - (token[0] in "}]")
            if depth == 0:
                return token.end()
        return None

    def _skip_white(self) -> None:
        while True:
            while self._at < len(self._text) and self._text[self._at] in _WHITE:
                self._at += 1
            if self._at < len(self._text):
                return
            self._fill(1)

    def _fill(self, wanted: int) -> None:
        left = self._text[self._at :]
        if len(left) > self._longest:
            raise ListError(f"not JSON, or an object of more than {self._longest >> 20} MiB")
        parts, added = [left], 0
        while added < wanted and (chunk := next(self._chunks, b"")):
            try:
                parts.append(self._bytes.decode(chunk))
            except UnicodeDecodeError:
                raise ListError("not UTF-8") from None
            added += len(parts[-1])
        if not added:
            raise ListError("the text ends in the middle")
        self._text, self._at = "".join(parts), 0
