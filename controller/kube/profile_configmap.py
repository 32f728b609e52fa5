# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles from a ConfigMap: checked as a whole before they count, kept while a change is bad.

The profiles of a ConfigMap beside those of files; Events tell what came of its changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
import logging
import threading
import time
from typing import Any

from controller.config.profile_set import parse_profiles
from controller.config.yaml_document import ConfigError
from controller.core.settings import Profile, Settings
from controller.kube.client.api import Api
from controller.kube.client.watch import ConfigMapWatch
from controller.kube.events import Events, EventType, Regarding

__all__ = (
    "ClusterProfiles",
    "ConfigMapProfiles",
    "ProfilesState",
    "Reload",
)

_log = logging.getLogger(__name__)

_MOST_SHOWN = 3


class Reload(StrEnum):
    """What came of a change: in force, refused as a whole, or there is nothing to read."""

    APPLIED = "applied"
    FAILED = "failed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesState:
    """What is known of the ConfigMap.

    ``profiles`` are those in force, of the version that was applied last, ``applied_at_s`` since
    the epoch (``None``: none ever was). ``result`` and ``problems`` are those of the last change,
    whose object had the id ``uid``; ``None``: the ConfigMap was not read yet. ``unreadable`` says
    why it cannot be read now.
    """

    config_map: str
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    applied_at_s: float | None = None
    result: Reload | None = None
    problems: tuple[str, ...] = ()
    uid: str = ""
    unreadable: str = ""
    reloads: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(Reload, 0))

    @property
    def note(self) -> str:
        """What to tell people about the last change."""
        if self.result is Reload.APPLIED:
            return f"profiles in force: {', '.join(sorted(self.profiles)) or 'none'}"
        shown = self.problems[:_MOST_SHOWN]
        more = len(self.problems) - len(shown)
        hidden = (f"and {more} more problems",) if more else ()
        return "; ".join((*shown, *hidden, "the profiles stay as they were"))

    def status(self) -> dict[str, Any]:
        """Return it for /statusz: plain types."""
        return {
            "config_map": self.config_map,
            "profiles": sorted(self.profiles),
            "applied_at_s": self.applied_at_s,
            "result": self.result,
            "problems": self.problems,
            "unreadable": self.unreadable,
            "reloads": dict(self.reloads),
        }


class ClusterProfiles:
    """``take`` is for the thread that follows the ConfigMap, ``configure`` for the control thread.

    ``state`` is another object after each change, for any thread to read.

    :param clock: seconds since the epoch.
    """

    def __init__(
        self,
        namespace: str,
        name: str,
        *,
        tick_ns: int,
        cpus: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._origin = f"ConfigMap {namespace}/{name}"
        self._host = (tick_ns, cpus)
        self._clock = clock
        # Checking takes milliseconds and no I/O, so the control thread may wait for it.
        self._lock = threading.Lock()
        self._last: Mapping[str, Any] | None = None
        self.state = ProfilesState(config_map=f"{namespace}/{name}")

    def update(self, found: Mapping[str, Any] | None) -> None:
        """Check the ConfigMap *found*, ``None`` if there is none, and make it count if it is good.

        One that is gone takes nothing with it: whoever replaces it may delete it first.
        """
        with self._lock:
            self._last = found
            self._check()

    def reconfigure(self, *, tick_ns: int, cpus: int) -> None:
        """Check what is there again if this host or its control period is another one now."""
        with self._lock:
            before, self._host = self._host, (tick_ns, cpus)
            if before != self._host and self._last is not None:
                self._check()

    def _check(self) -> None:
        tick_ns, cpus = self._host
        meta = (self._last or {}).get("metadata")
        uid = str(meta.get("uid", ""))[:64] if isinstance(meta, dict) else ""
        if self._last is None:
            self._change(Reload.MISSING, uid, problems=(f"{self._origin}: does not exist",))
            return
        try:
            texts = _texts(self._last, self._origin)
            profiles = parse_profiles(texts, self._origin, tick_ns=tick_ns, cpus=cpus)
        except ConfigError as error:
            self._change(Reload.FAILED, uid, problems=error.problems)
            return
        self._change(Reload.APPLIED, uid, profiles=profiles, applied_at_s=self._clock())

    def _change(self, result: Reload, uid: str, **fields: Any) -> None:
        reloads = {**self.state.reloads, result: self.state.reloads[result] + 1}
        fields = {"problems": ()} | fields
        state = replace(self.state, result=result, uid=uid, reloads=reloads, **fields)
        self.state = state
        level = logging.INFO if result is Reload.APPLIED else logging.WARNING
        _log.log(level, "%s: %s: %s", self._origin, result, state.note)


def _texts(found: Mapping[str, Any], origin: str) -> Mapping[str, object]:
    if found.get("binaryData"):
        raise ConfigError([f"{origin}: binaryData: profiles are text, in data"])
    data = found.get("data") or {}
    if not isinstance(data, dict):
        raise ConfigError([f"{origin}: data: must be a mapping"])
    return data


_EVENTS: Mapping[Reload, tuple[str, EventType]] = {
    Reload.APPLIED: ("ProfilesApplied", "Normal"),
    Reload.FAILED: ("ProfilesRefused", "Warning"),
    Reload.MISSING: ("ProfilesMissing", "Warning"),
}


class ConfigMapProfiles:
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

    def merge_into(self, settings: Settings) -> Settings:
        """Return *settings*, whose profiles are those of files, with those last taken as well.

        The first call begins to read the ConfigMap, because a profile has to fit the settings.
        """
        tick_ns, cpus = settings.tick_ns, settings.host.cpus
        if self._profiles is None:
            self._profiles = ClusterProfiles(*self._config_map, tick_ns=tick_ns, cpus=cpus)
            self._watch = ConfigMapWatch(self._api, *self._config_map, self._profiles.update)
        self._profiles.reconfigure(tick_ns=tick_ns, cpus=cpus)
        return replace(settings, profiles={**settings.profiles, **self._used})

    def poll(self) -> bool:
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

    def publish(self) -> None:
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
