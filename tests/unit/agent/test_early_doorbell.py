# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent is known to the container runtime before its start is over."""

from collections.abc import Callable, Iterator
from pathlib import Path
import signal
import socket
from typing import NoReturn

import pytest
import yaml

from controller.agent import agent as module
from controller.agent.agent import Agent, Options
from controller.agent.arrivals import Arrivals
from controller.agent.guardian import Heartbeat
from controller.config.load import Config
from controller.config.sections.agent import NriConfig
from controller.host.facts import HostError
from controller.host.state_dir import Lock
from tests.support.nri import Runtime
from tests.support.waiting import DEADLINE_S


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "nri.sock"))
        listener.listen()
        listener.settimeout(DEADLINE_S)
        yield listener


@pytest.fixture
def signals() -> Iterator[None]:
    """The mask of this thread, which an agent changes, as it was before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.fixture
def make_agent(
    listener: socket.socket, signals: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Agent]]:
    """Makes an agent in a mode, up to its probes."""
    made: list[Arrivals] = []

    def make_arrivals(config: NriConfig) -> Arrivals:
        made.append(Arrivals(config))
        return made[-1]

    def make(mode: str) -> Agent:
        config = {
            **{"mode": mode, "http": "off", "history": {"enabled": False}},
            **{"state_dir": f"{tmp_path}/state", "data_dir": f"{tmp_path}/data"},
            **{"nri": {"enabled": "on", "socket": listener.getsockname()}},
            "workloads": [{"name": "batch", "cgroup": "/batch", "class": "best-effort"}],
        }
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        lock = Lock(tmp_path / "state")
        options = Options(
            config=tmp_path / "config.yaml", mode=None, once=False, record=None, lock=lock
        )
        try:
            return Agent(options, Heartbeat())
        finally:
            lock.close()

    monkeypatch.setattr(module, "Arrivals", make_arrivals)
    yield make
    for each in made:
        each.follow(False)


def test_the_runtime_knows_it_before_its_probes_are_loaded(
    listener: socket.socket, make_agent: Callable[[str], Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(config: Config, *_: object) -> NoReturn:
        with Runtime(listener) as runtime:
            runtime.accept()
        raise HostError("registered")

    monkeypatch.setattr(module, "Node", load)
    with pytest.raises(HostError, match="registered"):
        make_agent("enforce")


def test_it_does_not_know_one_that_only_observes(
    listener: socket.socket, make_agent: Callable[[str], Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(config: Config, *_: object) -> NoReturn:
        raise HostError("no thread of a plugin")

    monkeypatch.setattr(module, "Node", load)
    with pytest.raises(HostError, match="no thread"):
        make_agent("observe")
    listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        listener.accept()
