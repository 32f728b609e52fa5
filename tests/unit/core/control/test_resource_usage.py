# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort's share of the use of a resource."""

import pytest

from controller.core.control.resource_usage import UsageTracker


def test_the_share_before_a_squeeze_outlasts_the_squeeze() -> None:
    use = UsageTracker()
    for second in range(10):
        use.update([("batch", True, second * 800), ("web", False, second * 200)], 1.0, False)
    assert use.share == pytest.approx(0.8)
    count = 9 * 800
    for second in range(10, 70):
        count += 80
        use.update([("batch", True, count), ("web", False, second * 200)], 1.0, True)
    assert use.share == pytest.approx(0.78, abs=0.02)
    for second in range(70, 190):
        count += 80
        use.update([("batch", True, count), ("web", False, second * 200)], 1.0, False)
    assert use.share == pytest.approx(0.29, abs=0.03)


def test_without_a_measurement_there_is_no_share() -> None:
    use = UsageTracker()
    use.update([], 1.0, False)
    assert use.share is None
    use.update([("batch", True, 100)], 1.0, False)
    assert use.share is None
