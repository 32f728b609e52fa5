# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The text of ``sweetpoint explain``: one paragraph for each incident."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from controller.agent.history.ask import Answer
from controller.agent.history.incidents import (
    Cookie,
    Coverage,
    Effect,
    Eviction,
    Gap,
    Held,
    Incident,
    Note,
    NoteKind,
    Share,
    Squeeze,
    Suffering,
    fell,
    helped,
)
from controller.cli.common import clock
from controller.cli.knob_text import value_text
from controller.core.explain import describe_part
from controller.core.model import Channel, EvictionResult, Knob, Mode, QosClass
from controller.core.units import NS_PER_SEC, count, format_cpus, format_duration
from controller.host.names import printable
from controller.page.words import describe_loop, state_words

if TYPE_CHECKING:
    from controller.cli.explain_now import Now

__all__ = ("lasted", "sentence", "text")

_WIDTH = 10
# A history that ends later than this before the end of the time is up to date.
_BEHIND_NS = 2 * NS_PER_SEC
# The least share of a culprit that is named.
_NAMED = 0.005
# Why a channel did what it did about a service, by its state.
_STATES = {
    "squeeze": "best-effort was limited for it",
    "free": "within the dead zone, or not long enough: nothing more was taken",
    "self": "it was held back by its own limit, so nothing more was taken for it",
    "steal": "the host took CPU time away, so nothing more was taken for it",
    "not-be": "best-effort was not the cause, so nothing more was taken for it",
    "hold": "no data: the last demand was held",
    "safe": "no data: safe state",
    "paused": "it was paused, so nothing more was taken for it",
    "other": "the channel followed another service",
}
# In observe mode, where nothing is written.
_WOULD = {"squeeze": "best-effort would have been limited for it"}
_NOTES = {
    NoteKind.FOREIGN: "foreign write",
    NoteKind.REFUSED: "refused write",
    NoteKind.ORDER: "order",
    NoteKind.NO_DATA: "data",
    NoteKind.PAUSE: "pause",
    NoteKind.VERDICT: "note",
}
# What came of an eviction, after the last answer to it.
_RESULTS = {
    None: "no answer is recorded",
    EvictionResult.EVICTED: "accepted",
    EvictionResult.FROZEN: "it was frozen",
    EvictionResult.KILLED: "it was killed",
    EvictionResult.GONE: "it had ended before",
    EvictionResult.REFUSED: "refused, so it was not evicted",
    EvictionResult.UNANSWERED: "asked for without an answer",
    EvictionResult.HELD: "not possible then, so it was not evicted",
    EvictionResult.REPORTED: "only reported, so it was not evicted",
}
# Those with an effect that is verified.
_EVICTED = (
    EvictionResult.EVICTED,
    EvictionResult.FROZEN,
    EvictionResult.KILLED,
    EvictionResult.GONE,
    EvictionResult.UNANSWERED,
)


def text(answer: Answer, now: "Now | None" = None) -> Iterator[str]:
    """Yield the lines of *answer*, for a terminal: no character of a name controls it.

    *now* is what the agent says that the history does not have yet (``None``: it was not asked).
    """
    for line in _lines(answer, now):
        yield printable(line)


def _lines(answer: Answer, now: "Now | None") -> Iterator[str]:
    coverage, incidents = answer.story.coverage, answer.story.incidents
    kind = "service" if answer.is_service else f"{answer.qos} workload"
    yield f"{answer.name}: {kind}, {clock(coverage.since_ns)} to {clock(coverage.until_ns)}"
    yield from _coverage(coverage)
    if not any(_touches(each) for each in incidents):
        is_new = now is not None and now.is_incident
        yield "The history has no incident of it yet." if is_new else _untouched(answer)
    for incident in incidents:
        yield ""
        yield from _paragraph(incident)
    if now is not None:
        yield ""
        yield from now.lines()


def _coverage(coverage: Coverage) -> Iterator[str]:
    asked_ns = coverage.until_ns - coverage.since_ns
    if coverage.first_ns is None:
        yield "The history holds nothing of this time."
        return
    yield f"An agent ran for {lasted(coverage.observed_ns)} of these {lasted(asked_ns)}."
    if coverage.first_ns - coverage.since_ns > 120 * NS_PER_SEC:
        yield f"The history begins at {clock(coverage.first_ns)}."
    last_ns = coverage.last_ns
    if last_ns is not None and coverage.until_ns - last_ns > _BEHIND_NS:
        ago = lasted(coverage.until_ns - last_ns)
        yield f"The history is known up to {clock(last_ns)}, {ago} before the end of this time."
    if coverage.unreadable:
        parts = count(coverage.unreadable, "part")
        yield f"{parts} of it cannot be read, so incidents may be missing."
    if coverage.dropped:
        yield f"{count(coverage.dropped, 'text')} of it could not be stored: there were too many."


def _touches(incident: Incident) -> bool:
    return isinstance(incident, Squeeze | Suffering | Cookie | Eviction) or (
        isinstance(incident, Note) and incident.event in (NoteKind.FOREIGN, NoteKind.REFUSED)
    )


def _untouched(answer: Answer) -> str:
    if answer.is_service:
        return "It was never above a sweet point for longer than its dead zone allows."
    if answer.qos is QosClass.SYSTEM:
        return "It is of class system: it is measured, and never touched."
    return "It was not touched: no limit was set on it, and its eviction was not asked for."


def _paragraph(incident: Incident) -> Iterator[str]:
    yield f"{clock(incident.began_ns)}  {sentence(incident)}"
    if isinstance(incident, Squeeze):
        yield from _squeeze(incident)
    elif isinstance(incident, Suffering):
        yield from _suffering(incident)
    elif isinstance(incident, Cookie):
        yield from _cookie(incident)
    elif isinstance(incident, Eviction):
        yield from _eviction(incident)


def sentence(incident: Incident) -> str:
    """Return what *incident* is, without the time of its begin."""
    if isinstance(incident, Squeeze):
        limited = f"{_did('limited', incident.mode)}{_parents(incident)}"
        return f"{limited} {_for(incident)}{_because(incident)}"
    if isinstance(incident, Suffering):
        return f"suffered on {incident.channel} {_for(incident)}"
    if isinstance(incident, Cookie):
        verb = _did("kept off the cores of services", incident.mode)
        return (
            f"best-effort {verb} by a core-scheduling cookie {_for(incident)}{_because(incident)}"
        )
    if isinstance(incident, Eviction):
        return (
            f"eviction of {incident.workload} because of {incident.service} on "
            f"{incident.channel}: {_outcome(incident)}"
        )
    if isinstance(incident, Gap):
        ended_ns = incident.ended_ns or incident.began_ns
        return (
            f"last record of an agent: {incident.reason}; the next one started at "
            f"{clock(ended_ns)}, with every knob restored"
        )
    assert isinstance(incident, Note)
    return f"{_NOTES[incident.event]}: {incident.text}"


def _parents(squeeze: Squeeze) -> str:
    shared = [held for held in squeeze.knobs if held.shared_by is not None]
    names = ", ".join(
        f"{held.target} (shared by {count(held.shared_by or 0, 'workload')})" for held in shared
    )
    if not shared:
        return ""
    return f"{'' if len(shared) == len(squeeze.knobs) else ', also'} through its parent {names}"


def _did(verb: str, mode: Mode) -> str:
    return verb if mode is Mode.ENFORCE else f"would have been {verb} (observe mode)"


def _because(incident: Squeeze | Cookie) -> str:
    channel = incident.channel if isinstance(incident, Squeeze) else Channel.CACHE
    return f" because of {incident.service} on {channel}" if incident.service else ""


def _squeeze(squeeze: Squeeze) -> Iterator[str]:
    if squeeze.loop is not None:
        yield _row("why", f"at worst {describe_loop(squeeze.loop)}")
    if squeeze.also:
        yield _row("also", f"it was limited for {', '.join(squeeze.also[:5])} later")
    yield from _evidence(squeeze.be_share, squeeze.culprits)
    for held in squeeze.knobs:
        yield _row("limit", _knob(held))
    if squeeze.use_cpus is not None:
        before = squeeze.use_before_cpus
        earlier = "" if before is None else f"{format_cpus(before)} before, "
        when = "while limited" if squeeze.mode is Mode.ENFORCE else "meanwhile"
        yield _row("use", f"{earlier}{format_cpus(squeeze.use_cpus)} on average {when}")
    if squeeze.loop is not None:
        yield from _effect(squeeze.effect, observed=squeeze.mode is Mode.OBSERVE)
    if squeeze.ended_by:
        yield _row("end", squeeze.ended_by)


def _suffering(suffering: Suffering) -> Iterator[str]:
    yield _row("what", f"at worst {describe_loop(suffering.loop)}")
    yield from _evidence(suffering.be_share, suffering.culprits)
    if parts := [each for each in suffering.parts if each.share >= _NAMED]:
        yield _row("parts", f"on average {', '.join(map(describe_part, parts))}")
    for state, time_ns in sorted(suffering.states_ns.items(), key=lambda item: -item[1]):
        if time_ns:
            why = _STATES.get(state, "")
            if suffering.mode is Mode.OBSERVE:
                why = _WOULD.get(state, why)
            text = f"{state_words(state)} for {lasted(time_ns)}: {why}"
            yield _row("state", text + _in_force(suffering, state, time_ns))
    if suffering.others:
        yield _row("others", f"the channel also followed {', '.join(suffering.others[:5])}")
    tried = "tried" if suffering.mode is Mode.ENFORCE else "would try"
    moved = [each for each in suffering.limited if each.strictest != each.before]
    moved.sort(key=lambda held: held.shared_by is None)  # one for all says more than one of them
    for held in moved[:10]:
        yield _row(tried, _knob(held))
    if len(moved) > 10:
        yield _row(tried, f"and {len(moved) - 10} more")
    observed = suffering.mode is Mode.OBSERVE or not suffering.limited
    yield from _effect(suffering.effect, observed=observed)
    if suffering.ended_by:
        yield _row("end", suffering.ended_by)


def _in_force(suffering: Suffering, state: str, time_ns: int) -> str:
    """Return for how long of a state a limit was in force, unless the state says so."""
    limited_ns = suffering.limited_ns.get(state, 0)
    is_whole = time_ns - limited_ns < NS_PER_SEC
    if suffering.mode is Mode.OBSERVE or (state == "squeeze" and is_whole):
        return ""
    if not limited_ns:
        return "; no limit was in force" if state == "squeeze" else ""
    return "; a limit was in force" + ("" if is_whole else f" for {lasted(limited_ns)} of it")


def _cookie(cookie: Cookie) -> Iterator[str]:
    if cookie.reason:
        yield _row("why", cookie.reason)
    if cookie.overlap_ratio is not None and cookie.mode is Mode.ENFORCE:
        ratio = cookie.overlap_before_ratio
        before = "" if ratio is None else f"{ratio:.0%} of their time before, "
        line = f"services shared a core with it for {before}{cookie.overlap_ratio:.0%} with cookies"
        yield _row("sharing", line)
    effect = "not known: it was not verified in this time"
    if cookie.mode is Mode.OBSERVE:
        effect = "not known: nothing was written"
    elif cookie.helped is not None:
        effect = f"{'it helped:' if cookie.helped else 'it did not help'} {cookie.verdict}"
    yield _row("effect", effect)
    if cookie.ended_by and cookie.mode is Mode.ENFORCE:
        yield _row("end", cookie.ended_by)


def _eviction(eviction: Eviction) -> Iterator[str]:
    yield _row("why", eviction.reason)
    for answer in eviction.answers:
        yield _row("answer", answer)
    if eviction.effect or eviction.result in _EVICTED:
        yield _row("effect", eviction.effect or "not known: it was not verified in this time")


def _outcome(eviction: Eviction) -> str:
    text = _RESULTS[eviction.result]
    if eviction.result in (EvictionResult.EVICTED, EvictionResult.UNANSWERED):
        after_ns = eviction.left_after_ns
        left = "was not seen to end" if after_ns is None else f"ended {lasted(after_ns)} later"
        return f"{text}, and it {left}"
    return text


def _evidence(be_share: float | None, culprits: Iterable[Share]) -> Iterator[str]:
    if be_share is None:
        return
    # Of hundreds of equal culprits each has next to nothing.
    named = ", ".join(f"{e.workload} {e.share:.0%}" for e in culprits if e.share >= _NAMED)
    # About the largest part at any time, unlike the average of the parts.
    yield _row("evidence", f"best-effort caused up to {be_share:.0%} of it{named and f': {named}'}")


def _effect(effect: Effect, *, observed: bool) -> Iterator[str]:
    if effect.before is None or effect.highest is None:
        return
    after = effect.after if effect.after is not None else effect.last
    line = f"deviation {effect.before:.2f} at the begin, {effect.highest:.2f} at worst"
    if after is not None:
        when = "30s later" if effect.after is not None else "at the end"
        line += f", {after:.2f} {when}"
    if effect.below_after_ns is not None:
        line += f"; at the sweet point after {lasted(effect.below_after_ns)}"
    yield _row("effect", line if observed else line + _verdict(effect))


def _verdict(effect: Effect) -> str:
    """Return whether the limit helped, and no more than the record shows."""
    if fell(effect) is None:
        return ""
    if not fell(effect):
        return ": it did not help within 30s"
    if helped(effect):
        now = effect.after if effect.after is not None else effect.last
        is_enough = effect.below_after_ns is not None or (now or 0.0) <= 0
        return ": it helped" if is_enough else ": it helped, but not enough"
    if effect.be_share is None:
        why = "what hurt the service is not known"
    else:
        why = f"at worst best-effort caused {effect.be_share:.0%} of what hurt the service"
    return f": not known whether it helped, because {why}"


def _knob(held: Held) -> str:
    before, strictest, last = (
        value_text(held.knob, value) for value in (held.before, held.strictest, held.last)
    )
    last = "" if last == strictest else f", {last} at last"
    target = held.target
    if held.shared_by is not None:
        target += f", the parent of {count(held.shared_by, 'best-effort workload')}"
    if held.knob is not Knob.CORE_COOKIE:
        strictest += " at the strictest"
    return f"{held.knob} of {target}: {before} -> {strictest}{last}"


def _for(incident: Incident) -> str:
    if incident.ended_ns is None:
        return "since then"
    return f"for {lasted(incident.ended_ns - incident.began_ns)}"


def lasted(time_ns: int) -> str:
    """Return a time as people say it: ``1h 5min``, ``3min 20s``, ``12s``."""
    seconds = round(time_ns / NS_PER_SEC)
    if seconds < 1:
        return format_duration(time_ns) if time_ns else "0s"
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [(hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def _row(label: str, value: str) -> str:
    return f"    {label:<{_WIDTH}}{value}"
