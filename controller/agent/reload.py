# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which configuration is in force, and who is here by its rules."""

from dataclasses import dataclass, replace
from enum import Enum, auto
import logging
from pathlib import Path
import time

from controller.agent.node import Node
from controller.config.load import Config, ConfigError, load
from controller.core.model import Mode
from controller.core.units import NS_PER_SEC

__all__ = ("Change", "ConfigFollower", "ConfigSource")

_log = logging.getLogger(__name__)

_SCAN_NS = 1 * NS_PER_SEC
# Where a thousand workloads change all the time, we look less often, as long as looking takes
# more than this part of a CPU; what follows from a change takes about as much again.
_SCAN_CPUS = 0.0025
_LONGEST_SCAN_NS = 2 * NS_PER_SEC
# Also when no cgroup came or went: processes of others may have turned up.
_RESCAN_NS = 30 * NS_PER_SEC
# What a reload cannot change.
_FIXED = (
    "state_dir",
    "http",
    "http_token_file",
    "network",
    "resctrl",
    "counters",
    "kubernetes",
    "eviction",
)


class Change(Enum):
    """What is new for whoever plans; new settings come with new workloads."""

    NOTHING = auto()
    WORKLOADS = auto()
    SETTINGS = auto()


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The file with the configuration; ``mode`` takes the place of the file's."""

    file: Path
    mode: Mode | None

    def load(self) -> Config:
        """Return what the file says now.

        :raises ConfigError: it cannot be used.
        """
        return load(self.file, mode=self.mode)


class ConfigFollower:
    """Keeps a node with a configuration that changes: its file, a cluster's profiles, workloads.

    ``config`` is in force, all of it: a change with a mistake in it is left out as a whole, with
    the reason in ``problem``. *loaded* is what *source* said when *node* was made of it.
    """

    def __init__(self, source: ConfigSource, loaded: Config, node: Node) -> None:
        self._source = source
        self._node = node
        self._file_profiles = loaded.settings.profiles
        self._new_profiles = False
        self._next_scan_ns = self._next_rescan_ns = 0
        self.config = node.complete(loaded)
        self.problem = ""

    def poll(self, now_ns: int) -> Change:
        """Look who is here, when it is time to; a conflict keeps the workloads as they were."""
        if not self._is_due(now_ns):
            return Change.NOTHING
        self._next_rescan_ns = now_ns + _RESCAN_NS
        began_ns = time.thread_time_ns()
        try:
            return self._scan()
        except ConfigError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                _log.error("%s\ngoing on with the workloads as they were", error)
            return Change.NOTHING
        finally:
            pause_ns = round((time.thread_time_ns() - began_ns) / _SCAN_CPUS)
            self._next_scan_ns = now_ns + min(_LONGEST_SCAN_NS, max(_SCAN_NS, pause_ns))

    def _is_due(self, now_ns: int) -> bool:
        if now_ns >= self._next_rescan_ns:
            return True
        return now_ns >= self._next_scan_ns and self._node.has_changed()

    def _scan(self) -> Change:
        if self._node.cluster is not None and self._node.cluster.poll_profiles():
            self._new_profiles = True
        if self._new_profiles:
            config = self._complete(self.config)
            self._node.set_workloads(self._node.scan(config))
            self._adopt(config)
            return Change.SETTINGS
        workloads = self._node.scan(self.config)
        if workloads == self._node.workloads:
            return Change.NOTHING
        self._node.set_workloads(workloads)
        return Change.WORKLOADS

    def reload(self) -> bool:
        """Read the file again and take what it says; whether that was possible."""
        try:
            loaded = self._source.load()
            config = self._node.complete(loaded)
            workloads = self._node.scan(config)
        except ConfigError as error:
            self.problem = str(error)
            _log.error("reload: %s\nreload: nothing changed", error)
            return False
        for section in _FIXED:
            if getattr(config, section) != getattr(self.config, section):
                _log.warning("reload: %s changes only with a restart", section)
        config = replace(config, **{each: getattr(self.config, each) for each in _FIXED})
        if config.settings.mode is not self.config.settings.mode:
            self._node.restore()
            self._node.enforcing = config.settings.mode is Mode.ENFORCE
        self._file_profiles = loaded.settings.profiles
        config = self._complete(config)
        self._node.services.reconfigure(config.service_level)
        self._node.set_workloads(workloads)
        self._adopt(config)
        _log.info("reload: %s applied", self._source.file)
        return True

    def _complete(self, config: Config) -> Config:
        settings = replace(config.settings, profiles=self._file_profiles)
        return self._node.complete(replace(config, settings=settings))

    def _adopt(self, config: Config) -> None:
        self.config = config
        self.problem = ""
        self._new_profiles = False
