# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Series of a page are those that the library's parser finds on the whole page."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from controller.probes.service_level.series import _parse_block, samples

NAMES = st.sampled_from(["m", "m_bucket", "mm", "other"])
VALUES = st.sampled_from(["0", "7", "12345678901234567890", "1.5", "1e3", "NaN", "+Inf"])
LABELS = st.dictionaries(
    st.sampled_from(["le", "route", "xroute"]),
    st.sampled_from(["1", "/", "a b", "a} 3", "{", ",", 'q"q', "b\\b", 'route="/"', ""]),
    max_size=3,
)
ENDS = st.sampled_from(["", "", "", " ", " 1700000000000"])
COMMENT = "# TYPE m_bucket histogram"


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"")


@st.composite
def lines(draw: st.DrawFn) -> str:
    labels = ",".join(f'{name}="{escaped(value)}"' for name, value in draw(LABELS).items())
    series = draw(NAMES) + (f"{{{labels}}}" if labels or draw(st.booleans()) else "")
    return f"{series} {draw(VALUES)}{draw(ENDS)}"


PAGES = st.lists(st.one_of(lines(), st.just(COMMENT), st.just("")), max_size=8)


@given(PAGES, st.sampled_from([(), (("route", "/"),), (("route", 'q"q'),)]), st.booleans())
def test_the_series_of_a_page(
    page: list[str], labels: tuple[tuple[str, str], ...], newline: bool
) -> None:
    text = "\n".join(page) + "\n" * newline
    wanted = [
        (tuple(sorted(each.labels.items())), repr(float(each.value)))
        for line in page
        for family in text_string_to_metric_families(line)
        for each in family.samples
        if each.name == "m" and set(labels) <= set(each.labels.items())
    ]
    for _ in range(2):  # then its series are known
        found = samples(text.encode(), "m", labels, 100)
        assert [(each, repr(value)) for each, value in found] == wanted


def test_a_page_with_many_series_is_read_and_not_kept() -> None:
    def read(number: int) -> int:
        body = "".join(f'many{{a="{each}"}} 1\n' for each in range(number))
        return len(samples(body.encode(), "many", (), 100))

    before = _parse_block.cache_info().currsize
    assert read(65) == 65
    assert _parse_block.cache_info().currsize == before
    assert read(64) == 64
    assert _parse_block.cache_info().currsize == before + 1
