# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of the history that are damaged, foreign or of a newer version."""

from random import Random

import pytest

from controller.agent.history.records import VERSION, Line, Moment, Start, Stop, decode, encode
from controller.core.decision import Verdict
from controller.core.model import CgroupId, Mode, QosClass, Workload

WORKLOAD = Workload("web", CgroupId("v2", 7), "/web", QosClass.LS, "web", "nginx")
RECORDS: tuple[Start | Moment | Stop, ...] = (
    Start(version=VERSION, boot_id="b", mode=Mode.ENFORCE, new_run=True, workloads=(WORKLOAD,)),
    Moment(time_ns=5, mode=Mode.ENFORCE, verdicts=(Verdict(subject="web", text="ä\udcff\n"),)),
    Stop(time_ns=9),
)
LINES = [encode(number, record).rstrip(b"\n") for number, record in enumerate(RECORDS, 1)]


def test_records_are_read_as_they_were_written() -> None:
    found = list(decode(iter(LINES)))
    assert found[0] == Line(1, RECORDS[0])
    assert found[2] == Line(3, RECORDS[2])
    assert isinstance(found[1], Line) and isinstance(found[1].record, Moment)
    # A lone surrogate is text in JSON; a line break does not end the line.
    assert found[1].record.verdicts[0].text == "ä\\udcff\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"wall_ns":1}',
        b'{"wall_ns":1,"unknown":{}}',
        b'{"wall_ns":-1,"stop":{"time_ns":1}}',
        b'{"wall_ns":99999999999999999999,"stop":{"time_ns":1}}',
        b'{"wall_ns":' + b"9" * 5000 + b',"stop":{"time_ns":1}}',
        b'{"wall_ns":1,"stop":{"time_ns":"x"}}',
        b'{"wall_ns":1,"start":' + b"[" * 100_000 + b"}",
        b'{"wall_ns":1,"start":{"version":"x"}}',
        b'{"wall_ns":1,"start":{"version":null}}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_record_is_said_and_left_out(line: bytes) -> None:
    before, text, after = decode(iter([LINES[0], line, LINES[2]]))
    assert isinstance(before, Line) and isinstance(after, Line)
    assert isinstance(text, str) and len(text) < 300 and "\n" not in text


def test_a_newer_run_is_left_out_until_one_of_this_version() -> None:
    newer = LINES[0].replace(b'"version":%d' % VERSION, b'"version":%d' % (VERSION + 1))
    assert newer != LINES[0]
    found = list(decode(iter([newer, b'{"wall_ns":2,"new":1}', LINES[1], newer, *LINES])))
    assert found[0] == "written by a newer sweetpoint (version 2 of the format)"
    assert [type(each) for each in found[1:]] == [Line, Line, Line]


def test_moments_of_older_and_of_later_agents_are_read() -> None:
    older = b'{"wall_ns":2,"moment":{"time_ns":5,"mode":"enforce"}}'
    later = b'{"wall_ns":2,"moment":{"time_ns":5,"mode":"enforce","not_known_yet":[1]}}'
    plain = Line(2, Moment(time_ns=5, mode=Mode.ENFORCE))
    assert list(decode(iter([older, later]))) == [plain, plain]


def test_random_damage_never_raises() -> None:
    random = Random(1)
    for _ in range(3000):
        line = bytearray(random.choice(LINES))
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(line) + 1)
            line[at : at + random.randrange(5)] = random.randbytes(random.randrange(5))
        for each in decode(iter([bytes(line)])):
            assert isinstance(each, Line | str)
