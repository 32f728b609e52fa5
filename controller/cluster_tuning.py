# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The profiles of a ConfigMap beside those of files; Events tell what came of its changes."""

from collections.abc import Mapping
from dataclasses import replace

from controller.cluster_profiles import ClusterProfiles, ProfilesState, Reload
from controller.kube.api import Api
from controller.kube.config_map import ConfigMapWatch
from controller.kube.events import Events, EventType, Regarding
from controller.settings import Profile, Settings

__all__ = ("Tuning",)

_EVENTS: Mapping[Reload, tuple[str, EventType]] = {
    Reload.APPLIED: ("ProfilesApplied", "Normal"),
    Reload.FAILED: ("ProfilesRefused", "Warning"),
    Reload.MISSING: ("ProfilesMissing", "Warning"),
}


class Tuning:
    """For the control thread; a thread of its own reads the ConfigMap *config_map*.

    :param config_map: its namespace and its name.
    """

    def __init__(self, api: Api, events: Events, config_map: tuple[str, str]) -> None:
        self._api = api
        self._events = events
        self._config_map = config_map
        self._profiles: ClusterProfiles | None = None
        self._watch: ConfigMapWatch | None = None
        # Pinned, because workloads are scanned by them before they are in force.
        self._used: Mapping[str, Profile] = {}
        self._told: ProfilesState | None = None

    def beside(self, settings: Settings) -> Settings:
        """Return *settings*, whose profiles are those of files, with those last taken as well.

        The first call begins to read the ConfigMap, because a profile has to fit the settings.
        """
        tick_ns, cpus = settings.tick_ns, settings.host.cpus
        if self._profiles is None:
            self._profiles = ClusterProfiles(*self._config_map, tick_ns=tick_ns, cpus=cpus)
            self._watch = ConfigMapWatch(self._api, *self._config_map, self._profiles.take)
        self._profiles.configure(tick_ns=tick_ns, cpus=cpus)
        return replace(settings, profiles={**settings.profiles, **self._used})

    def take(self) -> bool:
        """Have ``beside`` use the newest good profiles; whether they are others than before."""
        before = self._used
        if self._profiles is not None:
            self._used = self._profiles.state.profiles
        return self._used is not before

    @property
    def state(self) -> ProfilesState | None:
        """What is known of the ConfigMap."""
        if self._profiles is None or self._watch is None:
            return None
        return replace(self._profiles.state, unreadable=self._watch.problem)

    @property
    def errors(self) -> Mapping[str, int]:
        """How many requests failed, by ``unreachable`` or HTTP status."""
        return {} if self._watch is None else self._watch.errors

    @property
    def failure(self) -> Exception | None:
        """What ended the thread: a bug."""
        return None if self._watch is None else self._watch.failure

    def tell(self) -> None:
        """Make an Event of a change that nobody was told of.

        That all is well when the agent starts is none: every node of a cluster would tell it.
        """
        state = None if self._profiles is None else self._profiles.state
        if state is None or state is self._told or state.result is None:
            return
        starts, self._told = self._told is None, state
        if starts and state.result is Reload.APPLIED:
            return
        reason, kind = _EVENTS[state.result]
        namespace, name = self._config_map
        about = Regarding("ConfigMap", namespace, name, state.uid)
        self._events.emit(about, reason, state.note, kind)

    def close(self) -> None:
        """Stop reading."""
        if self._watch is not None:
            self._watch.close()
