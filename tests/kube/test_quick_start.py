# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of the quick start that ask an agent, against one on a real node."""

from functools import partial

import pytest

from tests.kube.release import NAMESPACE, Release
from tests.support.quick_start import quick_start

pytestmark = [pytest.mark.kernel, pytest.mark.kube]


def test_the_commands_that_ask_an_agent_answer(release: Release) -> None:
    answers = {}
    for words in quick_start():
        if words[:2] == ["kubectl", "--namespace"] and words[3] in ("rollout", "exec"):
            own = ["--namespace", NAMESPACE, *words[3:]]
            # They only read. An agent that stands for five seconds does not answer some of them.
            ask = partial(release.node.cluster.kubectl, *own)
            answers[words[-1]] = release.node.wait(words[-1], ask)
    assert "successfully rolled out" in answers["daemonset/sweetpoint"]
    assert "enforce" in answers["--once"]
    assert "cgroup cpu controller" in answers["doctor"]
    assert answers["advise"]
