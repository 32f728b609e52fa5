# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Follows changes of configuration and workloads: scans in a tick, reloads on SIGHUP.

A scan (``ConfigFollower.poll``, called in every tick) lists the workloads by the rules in force
and takes over changed profiles of the cluster. It is due if cgroups were made or removed, as far as
the budget of scans allows (``ScanBudget``), and after 30 s in any case.

A reload (``ConfigFollower.reload``, called between two ticks) has two phases. The first one makes
everything that the new configuration needs and changes nothing:

1. The file and its profiles are read and checked.
2. Sections that only a restart can change keep their old values.
3. ``Node.complete`` adds the facts of this host and the profiles of the cluster.
4. ``Node.scan`` lists the workloads by the new rules.

An error up to here is logged and ends the reload: the old configuration stays in force. In the
second phase the node takes over the new configuration (``Node.reconfigure``), and warnings name
the sections with changes that only a restart applies.

Other policies in force (``ConfigFollower.adapt``) are a reload without the file: the texts in
force are loaded again. If that is refused, the present configuration stays, and it is tried again
after a minute.

After a change the agent passes the settings and workloads on to its planner, see ``Change``.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
import logging
import time

from controller.agent.config_source import ConfigSource
from controller.agent.node import Node
from controller.config.load import Config, ConfigError
from controller.core.units import NS_PER_SEC
from controller.host.facts import online_cpus
from controller.kube.client.rate_limit import TokenBucket

__all__ = ("Change", "ConfigFollower", "ScanBudget")

_log = logging.getLogger(__name__)

# In the long run there is one scan in each interval of a quarter of a second. Where many workloads
# change all the time, a scan takes long. The interval grows so that scans use no more than this
# part of a CPU; applying the changes takes about as much again.
_MIN_SCAN_NS = NS_PER_SEC // 4
_MAX_SCAN_CPUS = 0.0025
_MAX_SCAN_NS = 2 * NS_PER_SEC
# A pod's cgroup and those of its containers are made within half a second, and each of them needs a
# scan, which takes up to 4 ms with what it finds. So many short scans run one in each tick after a
# quiet time, or 25 of 4 ms: those of six pods. Containers that the runtime tells of have such a
# budget of their own, because they wait for it.
_SCANS_AT_ONCE = 160
# Scan at this interval if the workloads may be others, for example pods in the API server.
_SCAN_NS = 1 * NS_PER_SEC
# Scan at this interval even if no cgroup was made or removed: foreign processes may have been
# started among the best-effort work, which moves sched-idle.
_FORCED_SCAN_NS = 30 * NS_PER_SEC
# Fields of the configuration that a reload does not change. The limits of both sections of
# evictions are not among them: they are part of the settings.
_RESTART_ONLY = (
    "state_dir",
    "data_dir",
    "http",
    "http_token_file",
    "network",
    "resctrl",
    "counters",
    "history",
    "nri",
    "kubernetes",
    "eviction",
)


class Change(Enum):
    """What the planner has to take over; ``SETTINGS`` includes the workloads."""

    NOTHING = auto()
    WORKLOADS = auto()
    SETTINGS = auto()


class ScanBudget:
    """When scans may run: *at_once* after a quiet time, in the end four a second.

    A scan that takes long counts as up to eight.
    """

    def __init__(self, at_once: int, now_ns: int) -> None:
        self._bucket = TokenBucket(at_once, NS_PER_SEC / _MIN_SCAN_NS, now_ns / NS_PER_SEC)

    def allows(self, now_ns: int) -> bool:
        """Return whether a scan may run at *now_ns*."""
        return self._bucket.allows(now_ns / NS_PER_SEC)

    def spend(self, cpu_ns: int) -> None:
        """Take a scan that used *cpu_ns* of CPU time."""
        interval_ns = min(_MAX_SCAN_NS, max(_MIN_SCAN_NS, cpu_ns / _MAX_SCAN_CPUS))
        self._bucket.spend(interval_ns / _MIN_SCAN_NS)


class ConfigFollower:
    """Applies changes of the configuration file, of cluster profiles and of workloads to a node.

    ``config`` is the configuration in force. A change with an error in it is not applied at all,
    and ``problem`` holds the error until new settings are applied. Other policies are not such
    settings: after them the file has the same error.

    :param loaded: the configuration that *node* was made from, as read from *source*.
    """

    def __init__(self, source: ConfigSource, loaded: Config, node: Node) -> None:
        self._source = source
        self._node = node
        self._file_profiles = loaded.settings.profiles
        self._new_profiles = False
        now_ns = time.monotonic_ns()
        self._budget = ScanBudget(_SCANS_AT_ONCE, now_ns)
        self._arrivals = ScanBudget(_SCANS_AT_ONCE, now_ns)
        self._next_scan_ns = self._next_forced_scan_ns = 0
        self.config = node.complete(loaded)
        node.reconfigure(self.config, node.workloads)
        source.take(loaded)
        self._file_problem = source.problem
        self._policy_problem = ""
        self._scan_problem = ""

    def poll(self, now_ns: int, arrival: bool = False) -> Change:
        """Scan if a scan is due; return what the planner has to take over.

        *arrival*: the runtime tells that a container is about to run.

        If the host cannot be scanned now, for example for a lack of descriptors, the workloads
        stay as they were.
        """
        arrival = arrival and self._arrivals.allows(now_ns)
        if not arrival and not self._is_due(now_ns):
            return Change.NOTHING
        budget = self._arrivals if arrival else self._budget
        self._next_scan_ns = now_ns + _SCAN_NS
        self._next_forced_scan_ns = now_ns + _FORCED_SCAN_NS
        began_ns = time.thread_time_ns()
        try:
            return self._scan(now_ns)
        finally:
            budget.spend(time.thread_time_ns() - began_ns)

    def has_news(self, now_ns: int) -> bool:
        """Return whether a scan is due that may find other workloads than the last one."""
        return self._budget.allows(now_ns) and self._node.has_news()

    def _is_due(self, now_ns: int) -> bool:
        if now_ns >= self._next_forced_scan_ns:
            return True
        if not self._budget.allows(now_ns):
            return False
        return self._node.has_news() or (now_ns >= self._next_scan_ns and self._node.has_changed())

    def _scan(self, now_ns: int) -> Change:
        if self._node.cluster is not None and self._node.cluster.poll_profiles():
            self._new_profiles = True
        config = self.config
        if self._new_profiles:
            settings = replace(config.settings, profiles=self._file_profiles)
            config = self._node.complete(replace(config, settings=settings))
        try:
            workloads = self._node.scan(config)
        except OSError as error:
            if str(error) != self._scan_problem:
                self._scan_problem = str(error)
                _log.error("workloads: %s; keeping those of the last scan", error)
            self._next_forced_scan_ns = now_ns + _MAX_SCAN_NS
            return Change.NOTHING
        self._scan_problem = ""
        if self._new_profiles:
            self._node.reconfigure(config, workloads)
            self.config = config
            self._new_profiles = False
            self._file_problem = ""
            return Change.SETTINGS
        if workloads == self._node.workloads:
            return Change.NOTHING
        self._node.set_workloads(workloads)
        return Change.WORKLOADS

    @property
    def problem(self) -> str:
        """Why the file, or the policies in force now, were refused; empty if they were not."""
        return "\n".join(filter(None, (self._file_problem, self._policy_problem)))

    @property
    def digest(self) -> str:
        """The digest of the files in force; that of the cluster's profiles is apart."""
        return self._source.digest

    def reload(self) -> bool:
        """Read the file again and apply it; return whether it was applied."""
        try:
            loaded = self._apply(self._source.load)
        except (ConfigError, OSError) as error:
            self._file_problem = str(error)
            _log.error("reload: %s\nreload: nothing changed", error)
            return False
        self._file_problem = self._policy_problem = ""
        for section in _RESTART_ONLY:
            if getattr(loaded, section) != getattr(self.config, section):
                but = self._but_limits(loaded, section)
                _log.warning("reload: %s changes only with a restart%s", section, but)
        self._source.keep()
        _log.info("reload: %s applied", self._source.file)
        if loaded.policies:
            _log_policies(loaded)
        return True

    def has_other_policies(self) -> bool:
        """Return whether other policies are in force now than in the configuration."""
        clock = self._source.clock
        if clock.is_due():
            return True
        if clock.found is not self.config.in_force and clock.found.is_same_as(self.config.in_force):
            # The same ones until another time: the clock was set, or a window is over that the next
            # one continues.
            self.config = replace(self.config, in_force=clock.found)
        return False

    def adapt(self) -> bool:
        """Apply the configuration with the policies in force now; return whether it was applied."""
        try:
            loaded = self._apply(self._source.adapt)
        except (ConfigError, OSError) as error:
            self._source.clock.refused()
            if str(error) != self._policy_problem:
                _log.error("policies: %s\npolicies: nothing changed", error)
            self._policy_problem = str(error)
            return False
        self._policy_problem = ""
        _log_policies(loaded)
        return True

    def _apply(self, load: Callable[[], Config]) -> Config:
        """Apply what *load* returns, and return it.

        :raises ConfigError: a file is invalid; nothing was changed.
        :raises OSError: the same for the host.
        """
        try:
            loaded = load()
            config = self._node.complete(self._with_fixed_sections(loaded))
            workloads = self._node.scan(config)
        except (ConfigError, OSError):
            self._next_forced_scan_ns = 0  # the scan by the new rules does not count
            raise
        self._file_profiles = loaded.settings.profiles
        self._node.reconfigure(config, workloads)
        self.config = config
        self._new_profiles = False
        self._source.take(loaded)
        return loaded

    def refresh_cpus(self) -> Change:
        """Count the online CPUs of this host again; return what the planner has to take over."""
        settings = self.config.settings
        before, cpus = settings.host.cpus, len(online_cpus())
        if cpus == before:
            return Change.NOTHING
        _log.warning("this host had %d CPUs before, %d now: all channels start again", before, cpus)
        settings = replace(settings, host=replace(settings.host, cpus=cpus))
        self.config = replace(self.config, settings=settings)
        self._node.cores.reconfigure(settings.core)
        return Change.SETTINGS

    def _with_fixed_sections(self, loaded: Config) -> Config:
        settings = loaded.settings
        if not self._limits_apply(loaded):
            settings = replace(settings, eviction=self.config.settings.eviction)
        fixed = {each: getattr(self.config, each) for each in _RESTART_ONLY}
        return replace(loaded, settings=settings, **fixed)

    def _limits_apply(self, loaded: Config) -> bool:
        # Otherwise the limits in *loaded* are those of a section that is not in force.
        return (loaded.kubernetes is None) is (self.config.kubernetes is None)

    def _but_limits(self, loaded: Config, section: str) -> str:
        if section != ("eviction" if loaded.kubernetes is None else "kubernetes"):
            return ""
        limits = "per_hour and cool_down of evictions"
        return f", except {limits}" if self._limits_apply(loaded) else ""


def _log_policies(loaded: Config) -> None:
    found = [f"{each.name} ({each.because})" for each in loaded.in_force.entries]
    _log.info("policies in force: %s", ", ".join(found) or "none")
