# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether something helped, as far as that is known."""

from dataclasses import replace

import pytest

from controller.agent.history.incidents import Effect, fell, helped


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (Effect(), None),
        (Effect(before=1.0, highest=1.5, after=0.4, last=0.4), True),
        (Effect(before=1.0, highest=1.5, after=1.45, last=0.0), False),
        # It ended within 30 s of its highest.
        (Effect(before=1.0, highest=1.5, last=1.0), True),
        (Effect(before=1.0, highest=1.5, last=1.5), None),
    ],
)
def test_helped(effect: Effect, expected: bool | None) -> None:
    assert fell(effect) is expected
    assert helped(replace(effect, be_share=0.6)) is expected
    # What others caused may have ended by itself.
    for share in (None, 0.4):
        assert helped(replace(effect, be_share=share)) is (None if expected else expected)
