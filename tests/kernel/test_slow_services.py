# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Why a service is slow, beside a real agent: known causes one after the other, two together."""

import pytest

from tests.kernel.agent import AgentRun, Site
from tests.kernel.explaining import Explain
from tests.kernel.slow import Slow, pushing

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.apart,
    pytest.mark.thorough,
    pytest.mark.usefixtures("alone_on_cpu"),
]


@pytest.fixture
def slow(site: Site) -> Slow:
    return Slow(site)


def test_work_that_makes_a_service_wait(slow: Slow, capsys: pytest.CaptureFixture[str]) -> None:
    site = slow.site
    with AgentRun(site) as agent:
        agent.ready()
        slow.wait_for(f"other-work {site.path(site.bystander)}", agent, site.bystander)
        slow.wait_for("other-work backup", agent, slow.backup)
        slow.wait_for("another-service shop", agent, slow.shop)
        assert not slow.blamed_best_effort
        slow.wait_for("best-effort batch:one", agent, site.batch[0])
        assert slow.blamed_best_effort
        assert agent.stop() == 0
    told = Explain(site, capsys).text("web")
    assert "slow (another-service shop): " in told and "slow (best-effort batch:one): " in told


def test_a_service_that_hurts_itself(slow: Slow) -> None:
    with AgentRun(slow.site) as agent:
        agent.ready()
        slow.wait_for("own-tasks", agent, *[slow.site.service] * 4)
        slow.limit()
        # Also beside best-effort work.
        slow.wait_for("own-cpu-limit", agent, slow.site.batch[0])
        assert agent.stop() == 0


def test_a_service_of_which_only_its_own_figure_is_known(slow: Slow) -> None:
    with pushing(slow.site, 80), AgentRun(slow.site) as agent:
        agent.ready()
        slow.wait_for("best-effort batch:one", agent, slow.site.batch[0])
        assert agent.stop() == 0


def test_a_service_that_is_slow_for_a_reason_elsewhere(slow: Slow) -> None:
    with pushing(slow.site, 80), AgentRun(slow.site) as agent:
        agent.ready()
        slow.wait_for_none(agent)
        # Then best-effort work is the cause, and after it another service.
        slow.wait_for("best-effort batch:one", agent, slow.site.batch[0])
        slow.wait_for("another-service shop", agent, slow.shop)
        # Its own limit counts before the work of others.
        slow.limit()
        slow.wait_for("own-cpu-limit", agent, slow.shop)
        assert agent.stop() == 0
