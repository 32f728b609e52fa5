# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The format of a journal record: the name of its file, and its content."""

from collections.abc import Mapping
import json
import re
from typing import NamedTuple
import zlib

from controller.core.model import Knob, KnobValue, Target, TargetKind

__all__ = ("Record", "checked_fields", "encode", "parse", "record_name")

_FORMAT = 1


class Record(NamedTuple):
    """A held knob.

    ``original`` is the value to restore. The last write changed the knob from ``previous`` to
    ``intended``; the knob has one of these values or one between them.
    """

    target: Target
    knob: Knob
    original: KnobValue
    previous: KnobValue
    intended: KnobValue


def record_name(target: Target, knob: Knob) -> str:
    """Return the name of the file of a knob's record, without ``.json``."""
    scope = re.sub(r"[^A-Za-z0-9]", "-", target.scope)
    # The tag distinguishes scopes that become equal in a file name, and objects that have no id
    # before they are created.
    tag = zlib.crc32((target.scope if target.id else f"{target.scope}\0{target.path}").encode())
    return f"{knob}.{target.kind}.{scope}.{target.id}.{tag:08x}"


def encode(record: Record, boot_id: str) -> bytes:
    """Return the content of the file of *record*, in the boot *boot_id*."""
    body = {
        "format": _FORMAT,
        "boot_id": boot_id,
        "kind": record.target.kind,
        "scope": record.target.scope,
        "id": record.target.id,
        "path": record.target.path,
        "knob": record.knob,
        "original": record.original,
        "previous": record.previous,
        "intended": record.intended,
    }
    return json.dumps(body | {"crc": _crc(body)}).encode()


def _crc(body: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def checked_fields(data: bytes) -> dict[str, object]:
    """Return the fields of a record with a valid checksum.

    :raises ValueError: it is not valid; also KeyError, TypeError, RecursionError.
    """
    body = json.loads(data)
    if not isinstance(body, dict):
        raise TypeError("not a record")
    if body.pop("crc") != _crc(body):
        raise ValueError("wrong checksum")
    return body


def parse(fields: Mapping[str, object], name: str) -> Record | None:
    """Return the record with *fields*; ``None`` if only a newer version can interpret it.

    :raises ValueError: it is not the record of the knob *name*; also KeyError, TypeError.
    """
    kinds, knobs = [str(kind) for kind in TargetKind], [str(knob) for knob in Knob]
    if fields["format"] != _FORMAT or fields["kind"] not in kinds or fields["knob"] not in knobs:
        return None
    id_ = fields["id"]
    if not isinstance(id_, int):
        raise TypeError("id is not a number")
    target = Target(
        TargetKind(_text(fields, "kind")), _text(fields, "scope"), id_, _text(fields, "path")
    )
    record = Record(
        target,
        Knob(_text(fields, "knob")),
        KnobValue(_text(fields, "original")),
        KnobValue(_text(fields, "previous")),
        KnobValue(_text(fields, "intended")),
    )
    # The file of a copy under another name would outlive the record, and be restored once more.
    if record_name(target, record.knob) != name:
        raise ValueError("the record of another knob than its name says")
    return record


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is not text")
    return value
