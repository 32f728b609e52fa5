# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents: what happened to one workload or one service, put together from moments.

Times are ns since 1970. A squeeze lasts while the agent holds a graded knob that limits the
workload; knobs of all best-effort work (cache ways, memory bandwidth, a link's ceiling) count for
each of them. A suffering lasts while the filtered deviation of a service's loop is above 0. Whether
something helped is judged like the effect of an eviction: the deviation fell by a tenth.
Best-effort work must also have caused most of what hurt the service.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from controller.core.decision import IndicatorStatus, LoopReport, Part
from controller.core.model import Channel, EvictionResult, Knob, KnobValue, Mode

__all__ = (
    "HELP",
    "Cookie",
    "Coverage",
    "Eviction",
    "Gap",
    "Held",
    "Incident",
    "Note",
    "NoteKind",
    "Share",
    "Squeeze",
    "Suffering",
    "fell",
    "helped",
)

# The smallest fall of the deviation that counts as help, as in core.eviction.policy.
HELP = 0.1
# The least part of best-effort work in what hurts a service that makes a fall its merit.
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Share:
    """A workload and its part, 0 to 1, of what hurt the service."""

    workload: str
    share: float


@dataclass(slots=True)
class Held:
    """A knob during an incident; ``strictest`` is the value that limited most, ``last`` the last.

    ``target`` is the path of a cgroup, or the name of a link or group. Where it is the parent
    cgroup of best-effort workloads, which limits all of them together, ``shared_by`` is their
    number; ``None``: it is not.
    """

    knob: Knob
    target: str
    before: KnobValue
    strictest: KnobValue
    last: KnobValue
    reason: str
    shared_by: int | None = None


@dataclass(slots=True, kw_only=True)
class Effect:
    """The deviation of a service when it began to suffer, at its highest, 30 s later, and at last.

    Beyond the end of the scale of the loops it is that of the raw value. ``below_after_ns``: the
    time from the begin until it was at the sweet point again, or below; ``None``: never.
    ``be_share`` is best-effort's part, 0 to 1, of what hurt the service at its highest (``None``:
    not known).
    """

    before: float | None = None
    highest: float | None = None
    highest_ns: int = 0
    after: float | None = None
    last: float | None = None
    below_after_ns: int | None = None
    be_share: float | None = None


@dataclass(slots=True, kw_only=True)
class Incident:
    """What all kinds of incidents have; ``ended_ns`` is ``None`` while one lasts."""

    began_ns: int
    ended_ns: int | None = None


@dataclass(slots=True, kw_only=True)
class Squeeze(Incident):
    """A time in which a workload was limited (in observe mode: would have been).

    ``service`` is the one for which ``channel`` limited it when that began, ``also`` those for
    which it did later. ``loop`` is that of ``service`` at its worst raw value, and ``effect`` that
    of the service's own incident then. ``be_share`` is best-effort's part of the cause, about its
    largest, and ``own_share`` that of this workload then (``None``: it was not among the first
    ``culprits``). ``use_before_cpus`` is the CPU use in the time before, ``use_cpus`` the average
    of ``use_ns`` while limited. ``ended_by`` says why it ended.
    """

    mode: Mode
    channel: Channel | None = None
    service: str | None = None
    also: list[str] = field(default_factory=list)
    loop: LoopReport | None = None
    be_share: float | None = None
    own_share: float | None = None
    culprits: tuple[Share, ...] = ()
    knobs: list[Held] = field(default_factory=list)
    use_before_cpus: float | None = None
    use_cpus: float | None = None
    use_ns: int = 0
    effect: Effect = field(default_factory=Effect)
    ended_by: str = ""


@dataclass(slots=True, kw_only=True)
class Cookie(Incident):
    """A time in which best-effort work had a core-scheduling cookie (in observe mode: would have).

    Work with the cookie of ``group`` shares no core with a service. ``service`` is the one that
    suffered most on the cache channel when cookies were set (``None``: they are configured to be
    on, or that time is not recorded), ``reason`` the decision in words. ``overlap_before_ratio``
    and ``overlap_ratio`` are the part of the services' running time, 0 to 1, in which best-effort
    work ran on the other thread of the same core, before and with cookies. ``verdict`` says in
    words whether they helped, ``helped`` in short; ``None``: that is not known.
    """

    mode: Mode
    group: str
    service: str | None = None
    reason: str = ""
    overlap_before_ratio: float | None = None
    overlap_ratio: float | None = None
    verdict: str = ""
    helped: bool | None = None
    ended_by: str = ""


@dataclass(slots=True, kw_only=True)
class Suffering(Incident):
    """A time in which a service was above its sweet point on ``channel``.

    ``loop`` is the one with the worst raw value. ``be_share`` and ``culprits`` are as in
    ``Squeeze``. ``parts`` are the largest parts of all that hurt it, on average. ``states_ns`` is
    how long it suffered beyond its dead zone while the channel was in each state (``other``: it
    followed another service), ``limited_ns`` the part of that in which a limit of best-effort work
    was in force. ``limited`` are the knobs that were moved on the channel meanwhile. ``others`` are
    services that suffered more, which the channel followed instead.
    """

    mode: Mode
    channel: Channel
    loop: LoopReport
    be_share: float | None = None
    culprits: tuple[Share, ...] = ()
    parts: tuple[Part, ...] = ()
    states_ns: dict[str, int] = field(default_factory=dict)
    limited_ns: dict[str, int] = field(default_factory=dict)
    limited: list[Held] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    effect: Effect = field(default_factory=Effect)
    ended_by: str = ""


@dataclass(slots=True, kw_only=True)
class Eviction(Incident):
    """An eviction that was decided: its reason, the answers to it, the verdict on its effect.

    ``result`` is that of the last answer (``None``: there was none), ``left_after_ns`` the time
    from the decision until the workload was gone (``None``: it was not seen to go).
    """

    mode: Mode
    workload: str
    channel: Channel
    service: str
    reason: str
    answers: list[str] = field(default_factory=list)
    result: EvictionResult | None = None
    left_after_ns: int | None = None
    effect: str = ""


class NoteKind(StrEnum):
    """What a note is about."""

    FOREIGN = "foreign"
    REFUSED = "refused"
    ORDER = "order"
    NO_DATA = "no-data"
    PAUSE = "pause"
    VERDICT = "verdict"


@dataclass(slots=True, kw_only=True)
class Note(Incident):
    """A single event, in a sentence."""

    event: NoteKind
    text: str


@dataclass(slots=True, kw_only=True)
class Gap(Incident):
    """From the last record of a run to the start of the next one; ``reason`` says why it ended.

    The agent ended somewhere in between: a quiet run has a record a minute.
    """

    reason: str


@dataclass(slots=True)
class Coverage:
    """What the history knows of the time that was asked for.

    ``observed_ns`` is the time in which an agent ran. ``unreadable`` counts what was left out.
    """

    since_ns: int
    until_ns: int
    first_ns: int | None = None
    last_ns: int | None = None
    observed_ns: int = 0
    unreadable: int = 0
    dropped: int = 0


def fell(effect: Effect) -> bool | None:
    """Return whether the deviation fell from its highest within 30 s; ``None``: not known.

    What has not fallen before these 30 s are over is not known yet.
    """
    now = effect.after if effect.after is not None else effect.last
    if effect.highest is None or now is None:
        return None
    return True if effect.highest - now >= HELP else None if effect.after is None else False


def helped(effect: Effect) -> bool | None:
    """Return whether limiting best-effort work helped; ``None``: not known.

    A fall is not its merit where most of what hurt the service came from elsewhere.
    """
    found = fell(effect)
    if found and (effect.be_share is None or effect.be_share < _MOSTLY):
        return None
    return found


def suffers(loop: LoopReport) -> bool:
    """Whether the service of *loop* is above its sweet point, with data."""
    return loop.status is IndicatorStatus.FRESH and (loop.filtered_deviation or 0.0) > 0
