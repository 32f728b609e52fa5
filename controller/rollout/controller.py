# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The controller of a rollout: reads the cluster, decides, and writes two ConfigMaps.

The state is written before the profiles. So a controller that is killed in between repeats the
write of the profiles, which has the same result. Every write names the version of the object that
the decision was made from: after a conflict the next look decides again.
"""

from collections import defaultdict
from collections.abc import Mapping
import logging

from controller.config.yaml_document import ConfigError
from controller.core.units import count
from controller.host.names import printable
from controller.kube.client.api import Api, PatchKind, segment
from controller.kube.client.errors import ApiInvalidResponse
from controller.kube.events import Events, EventType, Regarding
from controller.kube.node import Json, annotation, mapping
from controller.kube.reasons import Reason
from controller.rollout.change import Change, change, check_reach, kept
from controller.rollout.decision import Seen, Write, applied, reasons, step, wanted
from controller.rollout.evidence import trial_of
from controller.rollout.spec import Proposal, RolloutModel, read_proposal
from controller.rollout.state import STATE_KEY, Phase, State, StateError, read, text
from controller.rollout.summary import TRIAL_KEY, SummaryError, Trial

__all__ = ("ROLL_BACK_KEY", "Controller")

_log = logging.getLogger(__name__)

# Annotation of the ConfigMap of the rollout, with any text: a person asks for the roll-back.
ROLL_BACK_KEY = "sweetpoint.dev/roll-back"
# More canary nodes say no more, and would make a look slow.
_MOST_NODES = 200
# Nodes that a line of the log names.
_MOST_NAMES = 5
_REASONS = {
    Phase.PENDING: Reason.ROLLOUT_PENDING,
    Phase.CANARY: Reason.ROLLOUT_CANARY,
    Phase.SOAKING: Reason.ROLLOUT_SOAKING,
    Phase.PROMOTED: Reason.ROLLOUT_PROMOTED,
    Phase.ROLLED_BACK: Reason.ROLLOUT_ROLLED_BACK,
}


class Controller:
    """The rollout in the ConfigMap *rollout*, of a profile in the ConfigMap *profiles*.

    ``state`` is that of the last look, and ``problem`` why a look decided nothing; for any thread.
    """

    def __init__(
        self, api: Api, events: Events, namespace: str, rollout: str, profiles: str
    ) -> None:
        self._api, self._events = api, events
        self._namespace, self._name = namespace, rollout
        maps = f"/api/v1/namespaces/{segment(namespace)}/configmaps"
        self._rollout_path = f"{maps}/{segment(rollout)}"
        self._profiles_path = f"{maps}/{segment(profiles)}"
        self._told: Mapping[str, list[str]] = {}
        self._warned: tuple[str, Phase] | None = None
        self.state: State | None = None
        self.problem = ""

    def look(self, now_s: float, passed_s: float) -> None:
        """Decide once; the arguments are those of ``step``.

        What is wrong in the ConfigMaps is logged, and nothing is decided.

        :raises ApiError: the server refused a request; HTTP status 409: an object has changed.
        :raises ApiUnreachable: the server did not answer; the next look goes on.
        """
        try:
            self._look(now_s, passed_s)
        except (ConfigError, StateError) as error:
            if str(error) != self.problem:
                _log.error("the rollout waits: %s", error)
            self.problem = str(error)
        else:
            self.problem = ""

    def _look(self, now_s: float, passed_s: float) -> None:
        rollout, profiles = self._api.get(self._rollout_path), self._api.get(self._profiles_path)
        spec, proposal = read_proposal(mapping(rollout, "data"), mapping(profiles, "data"))
        stored = mapping(rollout, "data").get(STATE_KEY)
        before = None if stored is None else read(str(stored))
        nodes, left_out = self._trials(spec, proposal)
        asked = bool(annotation(rollout, ROLL_BACK_KEY))
        seen = Seen(proposal=proposal, nodes=nodes, left_out=left_out, asked=asked)
        if proposal is not None and not asked and not _is_over(before, proposal):
            check_reach(proposal, profiles)
        after = step(before, seen, now_s, passed_s)
        if asked and proposal is None:
            self._forget_asked(rollout, after)
        keeps = _kept(after, proposal, profiles)
        stored_data = mapping(rollout, "data")
        is_kept = all(stored_data.get(key) == each for key, each in keeps.items())
        if after is not None and (after != before or asked or not is_kept):
            rollout = self._save(rollout, after, keeps)
            self._tell(rollout, before, after)
        self._tell_left_out(rollout, after, left_out)
        write = wanted(after, seen)
        if write is not None and after is not None and proposal is not None:
            self._write(rollout, profiles, proposal, write)
            if after.phase.is_end and not after.applied:
                after = applied(after, now_s)
                self._save(rollout, after)
        self.state = after

    def _save(self, rollout: Json, state: State, kept: Mapping[str, str] | None = None) -> Json:
        """Store *state* and what is *kept*; what a person asked for is done with that."""
        data = {STATE_KEY: text(state), **(kept or {})}
        return self._patch(self._rollout_path, rollout, Change(data, {ROLL_BACK_KEY: None}))

    def _forget_asked(self, rollout: Json, state: State | None) -> None:
        """A roll-back without a candidate is over, so that it does not end the next candidate."""
        _log.warning("%s: the profiles have no candidate to roll back", ROLL_BACK_KEY)
        if state is None:  # else it is removed with the next save
            self._patch(self._rollout_path, rollout, Change({}, {ROLL_BACK_KEY: None}))

    def _write(self, rollout: Json, profiles: Json, proposal: Proposal, write: Write) -> None:
        needed = change(write, proposal, rollout, profiles)
        if needed is not None:
            self._patch(self._profiles_path, profiles, needed)
            names = proposal.names
            _log.info("%s: %s", write, names if isinstance(names, str) else names.candidate)

    def _patch(self, path: str, found: Json, needed: Change) -> Json:
        version = mapping(found, "metadata").get("resourceVersion")
        if not isinstance(version, str):
            raise ApiInvalidResponse("a ConfigMap without a version")
        meta = {"resourceVersion": version, "annotations": needed.annotations}
        body = {"metadata": meta, "data": needed.data}
        return self._api.patch(path, body, kind=PatchKind.MERGE)

    def _tell(self, rollout: Json, before: State | None, after: State) -> None:
        if before is not None and (before.phase, before.digest) == (after.phase, after.digest):
            return
        message = after.conditions[0].message
        _log.info("rollout: %s: %s", after.phase, message)
        kind: EventType = "Warning" if after.phase is Phase.ROLLED_BACK else "Normal"
        about = self._about(rollout)
        self._events.emit(about, _REASONS[after.phase], message, kind, after.digest)

    def _tell_left_out(
        self, rollout: Json, state: State | None, left_out: Mapping[str, str]
    ) -> None:
        """Log which trials do not count, at each change; emit an Event, once in a phase.

        A node may change its annotation all the time, and must not use up the Events.
        """
        nodes: dict[str, list[str]] = defaultdict(list)
        for name, reason in sorted(left_out.items()):
            nodes[reason].append(name)
        for reason, names in nodes.items():
            if self._told.get(reason) != names:
                first = ", ".join(map(printable, names[:_MOST_NAMES]))
                more = "" if len(names) <= _MOST_NAMES else ", ..."
                _log.warning(
                    "%s of %s is left out (%s%s): %s",
                    *(TRIAL_KEY, count(len(names), "node"), first, more, reason),
                )
        self._told = nodes
        if not left_out or state is None or state.phase not in (Phase.CANARY, Phase.SOAKING):
            return
        phase = state.digest, state.phase
        if self._warned != phase:
            self._warned = phase
            about, note = self._about(rollout), "; ".join(reasons(left_out))
            topic = f"{state.phase} {state.digest}"
            self._events.emit(about, Reason.ROLLOUT_LEFT_OUT, note, "Warning", topic)

    def _about(self, rollout: Json) -> Regarding:
        uid = str(mapping(rollout, "metadata").get("uid", ""))
        return Regarding("ConfigMap", self._namespace, self._name, uid)

    def _trials(
        self, spec: RolloutModel, proposal: Proposal | None
    ) -> tuple[Mapping[str, Trial], Mapping[str, str]]:
        """Return the trial of each canary node, and why those of some nodes are left out."""
        found: dict[str, Trial] = {}
        problems: dict[str, str] = {}
        labels = spec.nodes

        def add(node: Json) -> None:
            meta = mapping(node, "metadata")
            name, own = meta.get("name"), mapping(meta, "labels")
            if not isinstance(name, str) or len(found) == _MOST_NODES:
                return
            if any(own.get(key) != value for key, value in labels.items()):
                return  # a proxy may answer in place of the server
            found[name] = Trial()
            if proposal is None:
                return
            try:
                found[name] = trial_of(proposal, annotation(node, TRIAL_KEY))
            except SummaryError as error:
                problems[name] = str(error)

        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        # "0": the state in the server's memory; the next look sees what is newer.
        self._api.items("/api/v1/nodes", {"labelSelector": selector, "resourceVersion": "0"}, add)
        return found, problems


def _is_over(state: State | None, proposal: Proposal) -> bool:
    """Whether *state* is the end of *proposal*."""
    return state is not None and state.phase.is_end and state.digest == proposal.digest


def _kept(state: State | None, proposal: Proposal | None, profiles: Json) -> Mapping[str, str]:
    """Return what is to be kept of *profiles* before the promotion of *proposal* is written."""
    if state is None or proposal is None or state.phase is not Phase.PROMOTED or state.applied:
        return {}
    return kept(proposal, profiles)
