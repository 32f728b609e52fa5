# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Work of this thread without a capability."""

from pathlib import Path

import pytest

from controller.host.capabilities import without_capability

CHOWN = 0


def effective() -> int:
    status = Path("/proc/thread-self/status").read_text()
    return int(status.partition("CapEff:")[2].split()[0], 16)


def test_the_capability_comes_back_also_after_an_error() -> None:
    before = effective()

    def fail() -> None:
        with without_capability(CHOWN):
            assert effective() == before & ~(1 << CHOWN)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert effective() == before


def test_one_that_is_not_there_changes_nothing() -> None:
    with without_capability(CHOWN):
        before = effective()
        with without_capability(CHOWN):
            assert effective() == before
        assert effective() == before
