# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""YAML files with the line number of every key and list item, for error messages.

The subset of YAML is mappings, lists and scalars. Plain scalars follow YAML 1.2 (``off`` and
``no`` are text, not booleans). Anchors, aliases and tags are refused: a kilobyte of aliases can
expand to gigabytes, and the files do not need them. PyYAML parses; only the construction of
the data is written here, because PyYAML's own discards the line numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
import errno
import json
import os
from pathlib import Path
import re
import stat

import yaml

from controller.host.names import printable
from controller.host.os_errors import reason

__all__ = (
    "MAX_BYTES",
    "ConfigError",
    "Document",
    "Loc",
    "decode_text",
    "parse_document",
    "read_document",
    "read_text",
    "write_document",
)

MAX_BYTES = 1 << 20
MAX_DEPTH = 16  # the deepest field of the files is at 7
MAX_PROBLEMS = 20
MAX_MESSAGE_CHARS = 400
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_FAULTS_OF_THE_HOST = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO}

# The place of a field in a document: mapping keys and list indices from the top.
Loc = tuple[str | int, ...]

# 18 digits fit in 64 bits. Longer numbers stay text, which the models refuse.
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,3})?")
_CONSTANTS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "false": False,
}


class ConfigError(Exception):
    """An invalid configuration; ``problems`` has one line per problem, at most 21."""

    def __init__(self, problems: Sequence[str]) -> None:
        shown = [_shorten(problem) for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            shown.append(f"... and {len(problems) - MAX_PROBLEMS} more problems")
        self.problems = tuple(shown)
        super().__init__("\n".join(shown))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The data of a file and the line of every key and list item in it.

    ``origin`` is the file's path, or another description of the source for messages. ``moved`` maps
    the place of a value in the data to where the file has it, if that is elsewhere. ``added`` has
    the documents of other files by the place of their data.
    """

    origin: str
    data: object
    lines: Mapping[Loc, int]
    moved: Mapping[Loc, Loc] = field(default_factory=dict)
    added: Mapping[Loc, "Document"] = field(default_factory=dict)

    def problem(self, loc: Loc, message: str) -> str:
        """Return ``file:line: field: message`` for the field at *loc*.

        For a field that is not in the file, the line is that of the nearest field around it.
        """
        at = loc = self.moved.get(loc, loc)
        for place, other in self.added.items():
            if loc[: len(place)] == place:
                return other.problem(loc[len(place) :], message)
        while at and at not in self.lines:
            at = at[:-1]
        line = f"{self.origin}:{self.lines.get(at, 1)}"
        return f"{line}: {_field_name(loc)}: {message}" if loc else f"{line}: {message}"


def read_document(path: Path) -> Document:
    """Read and parse *path*.

    :raises ConfigError: see ``read_text`` and ``parse_document``.
    :raises OSError: see ``read_text``.
    """
    return parse_document(read_text(path), str(path))


def parse_document(text: str, origin: str) -> Document:
    """Parse *text*; *origin* is its source in messages.

    :raises ConfigError: too large, not YAML, or refused YAML.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError([f"{origin}: larger than {MAX_BYTES >> 20} MiB"])
    builder = _Builder(origin)
    try:
        _check_events(origin, text)
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError([f"{origin}:{line}: not YAML: {error.reason}"]) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = f"not YAML: {error.problem}"
        if error.problem == "exceeded maximum nesting depth":
            # The parser of libyaml has a limit too (1,000), and reads ahead of its events.
            problem = _TOO_DEEP
        raise ConfigError([f"{origin}:{line}: {problem}"]) from None
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can escape
        line = text.count("\n", 0, error.start) + 1
        raise ConfigError([f"{origin}:{line}: not UTF-8 text"]) from None
    if root is None:
        raise ConfigError([f"{origin}: the file is empty"])
    data = builder.build(root, ())
    if builder.problems:
        raise ConfigError(builder.problems)
    return Document(origin=origin, data=data, lines=builder.lines)


def write_document(data: object) -> str:
    """Return *data* as YAML from which ``parse_document`` reads equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def read_text(path: Path) -> str:
    """Return the text of the file *path*.

    :raises ConfigError: unreadable, too large or not UTF-8.
    :raises OSError: the host is short of descriptors or memory, or its disk failed: no fault of
        the file.
    """
    try:
        # Without O_NONBLOCK, open(2) of a FIFO blocks until there is a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError([f"{path}: not a regular file"])
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        if error.errno in _FAULTS_OF_THE_HOST:
            raise
        raise ConfigError([f"{path}: cannot read: {reason(error)}"]) from None
    except ValueError:  # a NUL in the path
        raise ConfigError([f"{path!r}: not a file name"]) from None
    return decode_text(raw, str(path))


def decode_text(raw: bytes, origin: str) -> str:
    """Return the text of the bytes *raw* of *origin*, of which one more than allowed was read.

    :raises ConfigError: they are too many or not UTF-8.
    """
    if len(raw) > MAX_BYTES:
        raise ConfigError([f"{origin}: larger than {MAX_BYTES >> 20} MiB"])
    if b"\0" in raw:
        line = raw.count(b"\n", 0, raw.index(b"\0")) + 1
        raise ConfigError([f"{origin}:{line}: not a text file: contains a NUL byte"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            [f"{origin}:{line}: not UTF-8 text: byte 0x{raw[error.start]:02x}"]
        ) from None


def _check_events(origin: str, text: str) -> None:
    # This runs before composing, because libyaml composes recursively and follows aliases.
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        place = f"{origin}:{event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError([f"{place}: aliases (*{event.anchor}) are not supported"])
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            raise ConfigError([f"{place}: anchors (&{event.anchor}) are not supported"])
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag:
            raise ConfigError([f"{place}: tags ({event.tag}) are not supported"])
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise ConfigError([f"{place}: more than one YAML document in the file"])
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ConfigError([f"{place}: {_TOO_DEEP}"])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


@dataclass(slots=True)
class _Builder:
    origin: str
    lines: dict[Loc, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def build(self, node: yaml.Node, loc: Loc) -> object:
        self.lines.setdefault(loc, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*loc, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(line, "a key must be text")
                continue
            key = str(key_node.value)
            if key in result:
                first = self.lines[(*loc, key)]
                name = _field_name((*loc, key))
                self._report(line, f"{name}: given twice; the first is in line {first}")
                continue
            self.lines[(*loc, key)] = line
            result[key] = self.build(value_node, (*loc, key))
        return result

    def _scalar(self, node: yaml.ScalarNode) -> object:
        text = str(node.value)
        return text if node.style in ("'", '"', "|", ">") else _plain(text)

    def _report(self, line: int, message: str) -> None:
        self.problems.append(f"{self.origin}:{line}: {message}")


def _plain(text: str) -> object:
    """Return the value of a plain scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


class _Dumper(yaml.SafeDumper):
    """Writes without aliases, and quotes text that would be read back as something else."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # "off" and "2" need quotes in YAML 1.1, "1e3" in ours. Only in quotes is U+0085 no line break.
    style = None if _plain(text) == text and text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _field_name(loc: Loc) -> str:
    name = ""
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
        elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", part):
            name += f".{part}" if name else part
        else:
            name += f"[{json.dumps(part)}]"
    return name


def _shorten(text: str) -> str:
    # A tag, or the name of a file, can have control characters.
    head = text[: MAX_MESSAGE_CHARS + 1].replace("\n", " ")
    line = printable(head)
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 3] + "..."
