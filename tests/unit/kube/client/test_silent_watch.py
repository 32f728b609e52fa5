# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A watch without data: usual where nothing changes, and no proof that the server is well."""

from collections.abc import Iterator
import logging
from pathlib import Path
from typing import Any

import pytest

from controller.kube.client.api import Api, Limits
from controller.kube.client.watch import CollectionWatch
from tests.support.kube.pod_server import PodServer, refusal
from tests.support.waiting import eventually

# Short, so that watches end soon. It is the limit of the server's first answer too.
LIMITS = Limits(silence_s=1.0, gather_s=0)


def thing(name: str, color: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "shop", "name": name}, "color": color}


class Site:
    """A watch of a server that sends events only when the test says so."""

    def __init__(self, home: Path) -> None:
        self.server = PodServer(home)
        self.server.pods = [thing("a", "red")]
        self.published: list[dict[str, str]] = []
        self.watch = CollectionWatch[str](
            Api(self.server.kubeconfig, LIMITS),
            "Things",
            "/apis/example.org/v1/things",
            {"resourceVersion": "0"},
            lambda raw: str(raw["color"]),
            lambda found: self.published.append(dict(found)),
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    with site.server:
        yield site
        site.watch.close()
    assert site.watch.failure is None


def test_silence_is_no_failure(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        eventually("several silent watches", lambda: len(site.server.watches) >= 4)
    assert not site.watch.errors
    assert site.watch.problem == ""
    assert not caplog.records
    assert site.published == [{"shop/a": "red"}]
    assert site.watch.age_s(0) is not None


def test_a_silent_watch_is_resumed_and_only_the_third_one_lists_again(site: Site) -> None:
    eventually("several silent watches", lambda: len(site.server.watches) >= 5)
    site.watch.close()
    lists, watches = len(site.server.lists), len(site.server.watches)
    # One at the start, and one before each watch after three silent ones.
    assert lists == 1 + (watches - 1) // 3 or lists == 1 + watches // 3  # it may just list
    assert {each["resourceVersion"] for each in site.server.watches} == {"100"}


def test_what_no_event_told_is_found_after_silence(site: Site) -> None:
    eventually("the first state", lambda: site.published)
    site.server.pods = [thing("a", "blue")]  # as behind a proxy that keeps events back
    site.server.version += 1
    eventually("the second state", lambda: site.published[-1] == {"shop/a": "blue"})


def test_a_server_that_is_away_then_is_a_failure(site: Site) -> None:
    eventually("a silent watch", lambda: len(site.server.watches) >= 2)
    site.server.script = [refusal(503, "Unavailable")] * 50
    eventually("the failure", lambda: "503" in site.watch.problem)
    site.server.script = []
    eventually("its end", lambda: not site.watch.problem)


def test_events_still_come(site: Site) -> None:
    eventually("a silent watch", lambda: len(site.server.watches) >= 2)
    site.server.pods = [thing("a", "green")]
    site.server.send_event("MODIFIED", thing("a", "green"))
    eventually("the event", lambda: site.published[-1] == {"shop/a": "green"})
