# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A sampler with the probes of this host and without resctrl monitoring."""

from collections.abc import Iterator
import contextlib
from pathlib import Path

from actuators.executor import Executor
from actuators.journal import Journal
from controller.agent.sampler import Sampler
from controller.config.sections.resctrl import ResctrlConfig
from controller.host.facts import CgroupLayout
from controller.reconcilers.resctrl.monitor import ResctrlMonitor

__all__ = ("open_sampler",)


@contextlib.contextmanager
def open_sampler(layout: CgroupLayout, state_dir: Path) -> Iterator[Sampler]:
    """Load the probes; they are detached at the end."""
    off = ResctrlConfig(
        manage=False, mount=False, group="", adopted=False, monitor=False, rmid_reserve=0
    )
    monitor = ResctrlMonitor(off, Executor(Journal(state_dir), ()), layout)
    with contextlib.closing(Sampler(layout, {}, monitor)) as sampler:
        yield sampler
