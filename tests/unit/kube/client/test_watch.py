# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Watching a collection: what is kept of it, and how failures of the server are handled."""

from collections.abc import Callable, Iterator, Mapping
import logging
from pathlib import Path
from random import Random
import threading
from typing import Any

import pytest

from controller.kube.client.api import Api
from controller.kube.client.rate_limit import Backoff
from controller.kube.client.watch import CollectionWatch, ConfigMapWatch
from tests.support.kube.limits import PATIENT
from tests.support.kube.pod_server import PodServer, refusal
from tests.support.waiting import eventually

Watch = CollectionWatch[str]


def colored(name: str, color: str | None, **spec: object) -> dict[str, Any]:
    meta = {"namespace": "shop", "name": name}
    return {"metadata": meta, "spec": {"color": color, **spec}}


def color(raw: Mapping[str, Any]) -> str | None:
    found = raw["spec"]["color"]
    return None if found is None else str(found)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PodServer]:
    with PodServer(tmp_path) as server:
        yield server


class Site:
    """A watch and every state that it published."""

    def __init__(
        self, server: PodServer, parse: Callable[[Mapping[str, Any]], str | None] = color
    ) -> None:
        self.published: list[dict[str, str]] = []
        self.watch = Watch(
            Api(server.kubeconfig, PATIENT),
            "Things",
            "/apis/example.org/v1/things",
            {"resourceVersion": "0"},
            parse,
            lambda found: self.published.append(dict(found)),
        )

    def wait_for(self, **colors: str) -> None:
        wanted = {f"shop/{name}": value for name, value in colors.items()}
        eventually(str(wanted), lambda: self.published and self.published[-1] == wanted)


@pytest.fixture
def site(server: PodServer) -> Iterator[Site]:
    server.pods = [colored("a", "red"), colored("b", None)]
    site = Site(server)
    yield site
    site.watch.close()
    assert site.watch.failure is None


def test_changes_are_published_unless_they_concern_ignored_objects(
    server: PodServer, site: Site
) -> None:
    site.wait_for(a="red")
    assert server.lists == [{"resourceVersion": "0"}]
    server.send_event("MODIFIED", colored("a", "red", other=1))
    server.send_event("BOOKMARK", {})
    server.send_event("DELETED", colored("b", None))
    server.send_event("MODIFIED", colored("a", "blue"))
    server.send_event("ADDED", colored("c", "green"))
    server.send_event("MODIFIED", colored("a", None))
    server.send_event("DELETED", colored("c", "green"))
    site.wait_for()
    assert [len(each) for each in site.published] == [1, 1, 2, 1, 0]
    assert len(server.lists) == 1
    assert not site.watch.problem and not site.watch.errors


def test_a_watch_that_ends_is_resumed_at_its_version(server: PodServer, site: Site) -> None:
    site.wait_for(a="red")
    server.send_event("ADDED", colored("c", "green"))
    site.wait_for(a="red", c="green")
    server.cut()
    eventually("another watch", lambda: len(server.watches) == 2)
    assert len(server.lists) == 1
    versions = [int(each["resourceVersion"]) for each in server.watches]
    assert versions == [100, 101] and "timeoutSeconds" in server.watches[0]


@pytest.mark.parametrize("trouble", [refusal(503, "Unavailable"), refusal(429, "Busy"), b""])
def test_an_overloaded_server_is_not_asked_for_another_list(
    server: PodServer, site: Site, trouble: bytes
) -> None:
    site.wait_for(a="red")
    site.watch._backoff = Backoff(Random(1), first_s=0.01)
    server.script = [trouble] * 2
    server.cut()
    eventually("the failures", lambda: sum(site.watch.errors.values()) == 2)
    eventually("another watch", lambda: len(server.watches) == 4)
    server.send_event("ADDED", colored("c", "green"))
    site.wait_for(a="red", c="green")
    assert len(server.lists) == 1 and not site.watch.problem


def test_watches_that_end_at_once_are_started_less_and_less_often(
    server: PodServer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    waits: list[float] = []
    site.wait_for(a="red")

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    monkeypatch.setattr(site.watch._closing, "wait", wait)
    server.script = [empty] * 40
    server.cut()
    eventually("many watches", lambda: len(waits) >= 40)
    # Full jitter, up to 30 s.
    assert 10 < max(waits) <= 30


def test_a_version_that_is_too_old_causes_a_list_and_no_log_line(
    server: PodServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.wait_for(a="red")
    server.pods = [colored("d", "black")]
    server.send_raw(b'{"type": "ERROR", "object": {"kind": "Status", "code": 410}}\n')
    site.wait_for(d="black")
    assert [each["resourceVersion"] for each in server.lists] == ["0", "100"]
    assert not site.watch.errors and not caplog.records


def test_a_kind_that_is_not_installed_is_requested_rarely(
    server: PodServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.script = [refusal(404, "NotFound")] * 10
    site = Site(server)
    eventually("the answer", lambda: site.watch.problem)
    # The next pause; the thread of the watch is in the first one.
    assert 150 <= site.watch._once() <= 300
    site.watch.close()
    assert not any(thread.name == "watch Things" for thread in threading.enumerate())
    assert len(server.lists) == 2 and site.published == []
    assert [each.getMessage() for each in caplog.records] == [
        "API server, Things: 404 NotFound: no"
    ]


def test_objects_are_kept_while_the_server_does_not_know_their_kind(
    server: PodServer, site: Site
) -> None:
    site.wait_for(a="red")
    server.script = [refusal(404, "NotFound")]
    server.send_raw(b"nonsense\n")  # ends the watch so that a list is necessary
    eventually("the list", lambda: "404" in site.watch.errors)
    assert len(site.published) == 1 and site.watch.problem.startswith("404")


def test_the_number_of_objects_is_bounded(
    server: PodServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.pods = [colored(f"n{number}", "red") for number in range(10_003)]
    site = Site(server)
    eventually("the list", lambda: site.published)
    assert len(site.published[0]) == 10_000
    site.watch.close()
    assert [each.getMessage() for each in caplog.records] == [
        "Things: there are more than 10000; the rest is ignored"
    ]


def test_a_bug_ends_the_thread_and_is_kept(server: PodServer) -> None:
    server.pods = [{"metadata": {}, "no": "spec"}]
    site = Site(server)
    eventually("the end", lambda: site.watch.failure)
    assert isinstance(site.watch.failure, KeyError)


def test_a_config_map_is_listed_from_the_memory_of_the_server(server: PodServer) -> None:
    server.pods = [{"metadata": {"namespace": "ops", "name": "tuning"}, "data": {"a": "b"}}]
    published: list[Mapping[str, Any] | None] = []
    watch = ConfigMapWatch(Api(server.kubeconfig, PATIENT), "ops", "tuning", published.append)
    eventually("the ConfigMap", lambda: published == server.pods)
    watch.close()
    assert server.lists == [{"fieldSelector": "metadata.name=tuning", "resourceVersion": "0"}]
    assert watch.failure is None
