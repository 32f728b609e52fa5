# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parsing of event sources, with a PMU's files in sysfs."""

from pathlib import Path

import pytest

from controller.probes.perf import EventSource, SourceError, find_source

CPU_TYPE, MSR_TYPE, RAW_TYPE = 4, 9, 4


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """The directory of PMUs in sysfs with an Intel CPU's and the msr PMU."""
    files = {
        "cpu/type": f"{CPU_TYPE}\n",
        "cpu/events/cycles": "event=0x3c\n",
        "cpu/events/offcore": "event=0x2a,umask=0x1,offcore_rsp=0x12\n",
        "cpu/format/event": "config:0-7,32-35\n",
        "cpu/format/umask": "config:8-15\n",
        "cpu/format/any": "config:21\n",
        "cpu/format/offcore_rsp": "config1:0-63\n",
        "cpu/format/odd": "config3:0-7\n",
        "msr/type": f"{MSR_TYPE}\n",
        "msr/events/tsc": "event=0x00\n",
        "msr/format/event": "config:0-63\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cycles", (0, 0)),
        ("cache-misses", (0, 3)),
        ("cpu-clock", (1, 0)),
        ("context-switches", (1, 3)),
        ("r412e", (RAW_TYPE, 0x412E)),
        ("msr/tsc/", (MSR_TYPE, 0)),
        ("cpu/cycles/", (CPU_TYPE, 0x3C)),
        ("cpu/event=0x2e,umask=0x41/", (CPU_TYPE, 0x412E)),
        ("cpu/event=0x2e,umask=0x41,any/", (CPU_TYPE, 0x20412E)),
        ("cpu/config=0x1c2/", (CPU_TYPE, 0x1C2)),
        ("cpu/config1=3,event=60/", (CPU_TYPE, 0x3C, 3)),
        ("cpu/offcore/", (CPU_TYPE, 0x12A, 0x12)),
        # A field in two parts: its upper bits are bits 32 to 35 of the word.
        ("cpu/event=0x1c2/", (CPU_TYPE, 0xC2 | 1 << 32)),
    ],
)
def test_a_source_gives_type_and_words(text: str, words: tuple[int, ...], devices: Path) -> None:
    assert find_source(text, devices) == EventSource(text, *words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cycle", "is no event"),
        ("", "is no event"),
        ("r", "is no event"),
        ("rxyz", "is no event"),
        ("cpu/cycles", "is no event"),
        ("../../etc/cycles/", "is no event"),
        ("cpu/../../../etc/passwd/", "is no event"),
        ("gpu/cycles/", "no PMU gpu .it has cpu, msr."),
        ("cpu/cycle/", "has no event 'cycle'"),
        ("cpu/event=0x2e,mask=1/", "has no field 'mask'"),
        ("cpu/event=/", "is not a list of fields"),
        ("cpu/event=0x2e,,any/", "is not a list of fields"),
        ("cpu/event=-1/", "is not a list of fields"),
        ("cpu/umask=0x100/", "does not fit"),
        ("cpu/any=2/", "does not fit"),
        ("cpu/odd=1/", "is in config3, which is not supported"),
    ],
)
def test_an_invalid_source_is_refused(text: str, message: str, devices: Path) -> None:
    with pytest.raises(SourceError, match=message):
        find_source(text, devices)
