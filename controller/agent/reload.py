# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Follows changes of configuration and workloads: scans in a tick, reloads on SIGHUP.

A scan (``ConfigFollower.poll``, called in every tick) lists the workloads by the rules in force
and takes over changed profiles of the cluster. It is due a second after the last one if cgroups
were made or removed, and after 30 s in any case.

A reload (``ConfigFollower.reload``, called between two ticks) goes through these steps:

1. The file and its profiles are read and checked.
2. ``Node.complete`` adds the facts of this host and the profiles of the cluster.
3. ``Node.scan`` lists the workloads by the new rules. An error up to here is logged and ends the
   reload: the old configuration stays in force.
4. Sections that only a restart can change keep their old values; a warning names them.
5. If the mode changes, every knob is restored first.
6. The node and the sources of service levels take over the new configuration.

After a change the agent passes the settings and workloads on to its planner, see ``Change``.
"""

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

_MIN_SCAN_NS = 1 * NS_PER_SEC
# Where a thousand workloads change all the time, a scan takes long. The interval grows so that
# scans use no more than this part of a CPU; applying the changes takes about as much again.
_MAX_SCAN_CPUS = 0.0025
_MAX_SCAN_NS = 2 * NS_PER_SEC
# Scan at this interval even if no cgroup was made or removed: foreign processes may have been
# started among the best-effort work, which moves sched-idle.
_FORCED_SCAN_NS = 30 * NS_PER_SEC
# Sections of the configuration that a reload does not change.
_RESTART_ONLY = (
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
    """What the planner has to take over; ``SETTINGS`` includes the workloads."""

    NOTHING = auto()
    WORKLOADS = auto()
    SETTINGS = auto()


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The path of the configuration file; ``mode`` overrides the mode in it."""

    file: Path
    mode: Mode | None

    def load(self) -> Config:
        """Read and check the file and its profiles.

        :raises ConfigError: one of them is invalid.
        :raises OSError: see ``load``.
        """
        return load(self.file, mode=self.mode)


class ConfigFollower:
    """Applies changes of the configuration file, of cluster profiles and of workloads to a node.

    ``config`` is the configuration in force. A change with an error in it is not applied at all,
    and ``problem`` holds the error until new settings are applied.

    :param loaded: the configuration that *node* was made from, as read from *source*.
    """

    def __init__(self, source: ConfigSource, loaded: Config, node: Node) -> None:
        self._source = source
        self._node = node
        self._file_profiles = loaded.settings.profiles
        self._new_profiles = False
        self._next_scan_ns = self._next_forced_scan_ns = 0
        self.config = node.complete(loaded)
        self.problem = ""

    def poll(self, now_ns: int) -> Change:
        """Scan if a scan is due; return what the planner has to take over.

        After a conflict between rules (logged once) the workloads stay as they were.
        """
        if not self._is_due(now_ns):
            return Change.NOTHING
        self._next_forced_scan_ns = now_ns + _FORCED_SCAN_NS
        began_ns = time.thread_time_ns()
        try:
            return self._scan()
        except ConfigError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                _log.error("%s\nkeeping the workloads of the last scan", error)
            return Change.NOTHING
        finally:
            pause_ns = round((time.thread_time_ns() - began_ns) / _MAX_SCAN_CPUS)
            self._next_scan_ns = now_ns + min(_MAX_SCAN_NS, max(_MIN_SCAN_NS, pause_ns))

    def _is_due(self, now_ns: int) -> bool:
        if now_ns >= self._next_forced_scan_ns:
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
        """Read the file again and apply it; return whether it was applied."""
        try:
            loaded = self._source.load()
            config = self._node.complete(loaded)
            workloads = self._node.scan(config)
        except (ConfigError, OSError) as error:
            self.problem = str(error)
            _log.error("reload: %s\nreload: nothing changed", error)
            return False
        for section in _RESTART_ONLY:
            if getattr(config, section) != getattr(self.config, section):
                _log.warning("reload: %s changes only with a restart", section)
        config = replace(config, **{each: getattr(self.config, each) for each in _RESTART_ONLY})
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
