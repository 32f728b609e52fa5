# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles from a ConfigMap, in addition to those of files.

A change is validated as a whole. If it is invalid, the profiles in force stay, and an Event at the
ConfigMap names the problems.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
import hashlib
import json
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
from controller.kube.policy_reaches import REACHES_KEY, decode_reaches
from controller.kube.reasons import Reason
from controller.kube.state import ProfilesState, Reload

__all__ = (
    "ClusterProfiles",
    "ConfigMapProfiles",
)

_log = logging.getLogger(__name__)


class ClusterProfiles:
    """Validation of the ConfigMap's profiles, and their state.

    ``update`` is for the thread of the watch, ``reconfigure`` for the control thread. ``state`` is
    replaced by a new object after each change; any thread may read it.

    :param tick_ns: the control period.
    :param cpus: the number of CPUs of this host.
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
        # Validation takes milliseconds without I/O, so the control thread may wait for the lock.
        self._lock = threading.Lock()
        self._last: Mapping[str, Any] | None = None
        self.state = ProfilesState(config_map=f"{namespace}/{name}")

    def update(self, config_map: Mapping[str, Any] | None) -> None:
        """Validate the ConfigMap, ``None`` if there is none, and apply its profiles if it is valid.

        A deletion does not remove the profiles, because a replacement may delete the object first.
        """
        with self._lock:
            before, self._last = self._last, config_map
            # A change of labels, other annotations or managed fields is none of the profiles.
            if before is None or config_map is None or _content(before) != _content(config_map):
                self._check()

    def reconfigure(self, *, tick_ns: int, cpus: int) -> None:
        """Validate the last ConfigMap again if the control period or the CPUs have changed."""
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
        policies = self.state.policies
        try:
            policies = decode_reaches(_reaches(self._last))
            texts = _texts(self._last, self._origin)
            profiles = parse_profiles(texts, self._origin, tick_ns=tick_ns, cpus=cpus)
        except ConfigError as error:
            # A wrong profile does not keep a policy from its reach.
            self._change(Reload.FAILED, uid, problems=error.problems, policies=policies)
            return
        digest = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()
        now_s = self._clock()
        self._change(
            Reload.APPLIED,
            uid,
            profiles=profiles,
            digest=digest,
            applied_at_s=now_s,
            policies=policies,
        )

    def _change(self, result: Reload, uid: str, **fields: Any) -> None:
        reloads = {**self.state.reloads, result: self.state.reloads[result] + 1}
        fields = {"problems": ()} | fields
        state = replace(self.state, result=result, uid=uid, reloads=reloads, **fields)
        self.state = state
        level = logging.INFO if result is Reload.APPLIED else logging.WARNING
        _log.log(level, "%s: %s: %s", self._origin, result, state.note)


def _content(config_map: Mapping[str, Any]) -> tuple[object, ...]:
    meta = config_map.get("metadata")
    uid = meta.get("uid") if isinstance(meta, dict) else None
    return uid, config_map.get("data"), config_map.get("binaryData"), _reaches(config_map)


def _reaches(config_map: Mapping[str, Any]) -> object:
    meta = config_map.get("metadata")
    annotations = meta.get("annotations") if isinstance(meta, dict) else None
    return annotations.get(REACHES_KEY) if isinstance(annotations, dict) else None


def _texts(config_map: Mapping[str, Any], origin: str) -> Mapping[str, object]:
    if config_map.get("binaryData"):
        raise ConfigError([f"{origin}: binaryData: profiles are text, in data"])
    data = config_map.get("data") or {}
    if not isinstance(data, dict):
        raise ConfigError([f"{origin}: data: must be a mapping"])
    return data


_EVENTS: Mapping[Reload, tuple[Reason, EventType]] = {
    Reload.APPLIED: (Reason.PROFILES_APPLIED, "Normal"),
    Reload.FAILED: (Reason.PROFILES_REFUSED, "Warning"),
    Reload.MISSING: (Reason.PROFILES_MISSING, "Warning"),
}


class ConfigMapProfiles:
    """Profiles of a ConfigMap for the control thread; a watch reads it in a thread of its own.

    :param config_map: namespace and name of the ConfigMap.
    """

    def __init__(self, api: Api, events: Events, config_map: tuple[str, str]) -> None:
        self._api = api
        self._events = events
        self._config_map = config_map
        self._profiles: ClusterProfiles | None = None
        self._watch: ConfigMapWatch | None = None
        # Changed by poll() only, so that a scan and the settings use the same profiles.
        self._used: Mapping[str, Profile] = {}
        self._published: ProfilesState | None = None

    def merge_into(self, settings: Settings) -> Settings:
        """Return *settings*, whose profiles are from files, with the profiles of ``poll`` added.

        The first call starts the watch, because profiles are validated against the settings.
        """
        tick_ns, cpus = settings.tick_ns, settings.host.cpus
        if self._profiles is None:
            self._profiles = ClusterProfiles(*self._config_map, tick_ns=tick_ns, cpus=cpus)
            self._watch = ConfigMapWatch(self._api, *self._config_map, self._profiles.update)
        self._profiles.reconfigure(tick_ns=tick_ns, cpus=cpus)
        return replace(settings, profiles={**settings.profiles, **self._used})

    def poll(self) -> bool:
        """Let ``merge_into`` use the newest valid profiles; return whether they changed."""
        before = self._used
        if self._profiles is not None:
            self._used = self._profiles.state.profiles
        return self._used is not before

    @property
    def state(self) -> ProfilesState | None:
        """The state of the ConfigMap; ``None`` before the first ``merge_into``."""
        if self._profiles is None or self._watch is None:
            return None
        return replace(self._profiles.state, unreadable=self._watch.problem)

    @property
    def errors(self) -> Mapping[str, int]:
        """The number of failed requests by ``unreachable`` or HTTP status."""
        return {} if self._watch is None else self._watch.errors

    @property
    def denied(self) -> Mapping[str, str]:
        """What the server forbids now, see ``CollectionWatch.denied``."""
        return {} if self._watch is None else self._watch.denied

    @property
    def failure(self) -> Exception | None:
        """The exception that ended the thread: a bug."""
        return None if self._watch is None else self._watch.failure

    def publish(self) -> None:
        """Emit an Event for the last change unless that was done before.

        The first change makes none if it was applied: every node of the cluster would emit it when
        its agent starts.
        """
        state = None if self._profiles is None else self._profiles.state
        if state is None or state is self._published or state.result is None:
            return
        is_first, self._published = self._published is None, state
        if is_first and state.result is Reload.APPLIED:
            return
        reason, kind = _EVENTS[state.result]
        namespace, name = self._config_map
        about = Regarding("ConfigMap", namespace, name, state.uid)
        self._events.emit(about, reason, state.note, kind)

    def close(self) -> None:
        """Stop the watch."""
        if self._watch is not None:
            self._watch.close()
