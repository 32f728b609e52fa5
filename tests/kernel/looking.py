# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The looks of an agent, one by one."""

import time

from controller.agent.config_source import ConfigSource
from controller.agent.looks import Looks
from controller.agent.node import Node
from controller.agent.pauses import Pauses
from controller.agent.reload import ConfigFollower
from controller.core.looks import PressureLimit, Quiet, TickReason, WaitLimit
from controller.core.model import Snapshot
from controller.core.units import NS_PER_SEC
from controller.host.store import Store
from controller.telemetry.report import PublishedState
from tests.kernel.agent import Site

__all__ = ("Looking",)

_LONG_NS = 3600 * NS_PER_SEC


class Looking:
    """The looks of a node without an agent; no tick is due, and no look is late.

    ``waits`` and ``pressures`` are the limits that the next tick finds.
    """

    def __init__(self, site: Site) -> None:
        place = site.home / "push.sock"
        pushes = "services: {web: {push: {users: [root]}}}"
        site.write(f"service_level: {{socket: {place}, {pushes}}}\n")
        self.source = ConfigSource(site.config, None)
        loaded = self.source.load()
        self.node = Node(loaded, Store(loaded.data_dir))
        self.follower = ConfigFollower(self.source, loaded, self.node)
        self.pauses = Pauses(loaded.state_dir)
        self.published = PublishedState()
        self.waits: tuple[WaitLimit, ...] = ()
        self.pressures: tuple[PressureLimit, ...] = ()
        self.looks = Looks(self.node, self.follower, self.pauses, self.published, None)

    def tick(self) -> Snapshot:
        now_ns = time.monotonic_ns()
        self.follower.poll(now_ns)
        self.looks.begin_tick()
        snapshot = self.node.poll(self.pauses.poll(), self.looks.left_out_ns)
        quiet = Quiet(None, _LONG_NS, self.waits, pressures=self.pressures)
        self.looks.end_tick(snapshot, quiet)
        return snapshot

    def reason(self, *, woken: bool = False) -> TickReason | None:
        return self.looks.reason(time.monotonic_ns(), _LONG_NS, woken=woken)

    def is_quiet(self) -> bool:
        """Whether a look finds nothing after a tick; other tests make cgroups, too."""
        self.tick()
        return self.reason() is None
