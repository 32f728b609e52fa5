# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint trial`` found, as an HTML page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
import math

from controller.cli.explain_text import lasted
from controller.cli.trial_text import conditions
from controller.core.units import NS_PER_SEC, count
from controller.host.names import printable
from controller.page.chart import Chart, Series
from controller.page.document import Card, Cards, Document, Part, Section, Table, Text, render
from controller.page.quantities import spaced
from controller.trial.analysis import BEST_EFFORT, Finding, Kind, Verdict, analyse
from controller.trial.blocks import Arm, Block, Pair, Results, changes_of

__all__ = ("trial_page",)

# Services with a card and a chart, the largest effects first; the table has all.
_MOST_CARDS = 8
_OF_WORK = (Kind.WORK, Kind.COUNT)
_TONES = {Verdict.BETTER: "good", Verdict.WORSE: "bad", Verdict.NO_DIFFERENCE: "unsure"}
_LEGEND = (
    "Green, red: the 95 % interval of the pairs is on one side of no difference. Grey: no "
    "difference shown, which is no proof of equality."
)


_Arms = Mapping[Arm, str]


def trial_page(results: Sequence[Results], ended: str) -> str:
    """Return the page of *results*, one of each node; *ended*: why it ended before its time."""
    findings = analyse([each.pairs for each in results])
    pairs = [pair for each in results for pair in each.pairs]
    notes = [f"The trial ended before its time: {printable(ended)}."] if ended else []
    notes += [f"{printable(each.node)}: {each.note}." for each in results if each.note]
    document = Document(
        title="sweetpoint trial",
        lead=f"The agent was {' and '.join(_arms(results).values())} in turns, in blocks of random "
        "order. So both saw the same services, jobs and load.",
        summary=_summary(results, pairs),
        notes=notes,
        sections=_sections(results, findings, pairs) if pairs else (),
    )
    return "".join(render(document))


def _arms(results: Sequence[Results]) -> _Arms:
    return {arm: printable(name) for arm, name in results[0].design.names.items()}


def _headings(arms: _Arms) -> tuple[str, ...]:
    return ("outcome", *arms.values(), "effect", "95 % interval", "pairs", "verdict")


def _summary(results: Sequence[Results], pairs: Sequence[Pair]) -> str:
    if not pairs:
        return "No pair was finished, so nothing is known."
    nodes = ", ".join(printable(each.node) for each in results[:_MOST_CARDS])
    more = f" and {len(results) - _MOST_CARDS} more" if len(results) > _MOST_CARDS else ""
    first = min(block.began_s for pair in pairs for block in pair)
    begin = datetime.fromtimestamp(first, UTC)
    return f"{count(len(pairs), 'pair')} on {nodes}{more}, from {begin:%Y-%m-%d %H:%M} UTC on."


def _sections(
    results: Sequence[Results], findings: Sequence[Finding], pairs: Sequence[Pair]
) -> Iterator[Section]:
    arms = _arms(results)
    services = [each for each in findings if each.kind is Kind.TIME]
    services.sort(key=lambda each: -abs(each.effect[0]))
    services = services[:_MOST_CARDS]
    shown = [*services, *(each for each in findings if each.kind in _OF_WORK)]
    cards = Cards([_card(each, arms) for each in shown])
    yield Section(title="What it brought", parts=(cards, Text(_LEGEND, "soft")))
    if len(results) == 1:
        names = [each.name for each in services]
        yield Section(title="Over time", parts=[*_charts(results[0], names)])
    else:
        yield Section(title="By node", parts=(_by_node(results),))
    yield Section(title="Every outcome", parts=(_table(findings, arms), _conditions(pairs, arms)))
    yield Section(title="How it was compared", parts=_method(results))


def _card(finding: Finding, arms: _Arms) -> Card:
    name, enforce, pause, effect, interval, _, verdict = _cells(finding)
    one, other = arms.values()
    if finding.kind is Kind.TIME:
        says, unit = "of the time above its sweet point", ""
    elif finding.kind is Kind.COUNT:
        says, unit = f"more than in the blocks {other}", ""
    else:
        says, unit = f"that of the blocks {other}", " CPUs" if name == BEST_EFFORT else ""
    details = [
        verdict,
        f"{enforce}{unit} {one}, {pause}{unit} {other}",
        f"95 % interval: {interval}",
    ]
    if finding.more_pairs is not None:
        details.append(f"{count(finding.more_pairs, 'more pair')} would show an effect so large")
    kind = _TONES[finding.verdict]
    return Card(title=name, figure=effect, says=says, details=details, kind=kind)


def _charts(results: Results, services: Sequence[str]) -> Iterator[Part]:
    """Yield a chart per service, and one of best-effort work: a point per block."""
    blocks = [block for pair in results.pairs for block in pair]
    arms = _arms([results])
    since = min(block.began_s for block in blocks)
    seconds = max(block.began_s for block in blocks) - since + results.design.pause_s

    def chart(title: str, unit: str, value: Callable[[Block], float]) -> Chart:
        return Chart(
            title=title,
            unit=unit,
            seconds=seconds,
            series=[
                Series(
                    label=arms[arm],
                    style=style,
                    points=sorted((b.began_s - since, value(b)) for b in blocks if b.arm is arm),
                )
                for arm, style in ((Arm.ENFORCE, "a"), (Arm.PAUSE, "b"))
            ],
            since=datetime.fromtimestamp(since, UTC),
        )

    for name in services:
        title = f"{printable(name)}: part of the time above its sweet point"
        yield chart(title, "%", partial(_suffered_percent, name))
    yield chart("CPU time of best-effort work", "CPUs", lambda block: block.best_effort_cpus)


def _suffered_percent(name: str, block: Block) -> float:
    return 100 * block.suffered_ratio.get(name, 0.0)


def _by_node(results: Sequence[Results]) -> Table:
    rows = [
        (printable(each.node), *_cells(finding))
        for each in results
        for finding in analyse([each.pairs])
        if finding.kind is not Kind.VALUE
    ]
    return Table(
        caption="Each node alone: fewer pairs, so wider intervals.",
        headings=("node", *_headings(_arms(results))),
        rows=rows,
        left=2,
    )


def _table(findings: Sequence[Finding], arms: _Arms) -> Table:
    return Table(
        caption="Services and best-effort work first; indicators have no verdict, because below "
        "its sweet point a lower value is worth nothing.",
        headings=_headings(arms),
        rows=[_cells(each) for each in findings],
    )


def _cells(finding: Finding) -> tuple[str, ...]:
    """Return the row of *finding* under ``_headings``."""
    middle, low, high = finding.effect
    if finding.kind is Kind.TIME:
        arms = f"{finding.enforce:.1%}", f"{finding.pause:.1%}"
        effect, interval = f"{100 * middle:+.1f} points", f"{100 * low:+.1f} to {100 * high:+.1f}"
    elif finding.kind is Kind.COUNT:
        arms = f"{finding.enforce:.4g}", f"{finding.pause:.4g}"
        effect, interval = f"{middle:+.4g}", f"{low:+.4g} to {high:+.4g}"
    else:
        arms = f"{finding.enforce:.4g}", f"{finding.pause:.4g}"
        effect, interval = f"{middle:.3f} times", f"{low:.3f} to {high:.3f}"
    if not all(map(math.isfinite, finding.effect)):
        interval = "not known from one pair"
    cells = map(spaced, (*arms, effect, interval))
    verdict = "" if finding.kind is Kind.VALUE else str(finding.verdict)
    return printable(finding.name), *cells, str(finding.pairs), verdict


def _conditions(pairs: Sequence[Pair], arms: _Arms) -> Table:
    blocks = [block for pair in pairs for block in pair]
    rows = [
        (what, *(f"{mean:.3f}" for mean in means), unit)
        for what, unit, name in (
            ("CPU time of the agent", "CPUs", "agent_cpus"),
            ("CPU time of services", "CPUs", "service_cpus"),
            ("taken by the host", "of the CPU time", "stolen_ratio"),
        )
        if (means := conditions(blocks, name))
    ]
    return Table(
        caption="What the agent cost, the load of services, and what the machine took from both.",
        headings=("condition", *arms.values(), "unit"),
        rows=rows,
    )


def _differences(results: Sequence[Results]) -> Iterator[Table]:
    """Yield a table of what the policy changes, if that is known."""
    rows = [tuple(map(printable, change)) for change in changes_of(results)]
    if rows:
        headings = ("key", *_arms(results).values())
        yield Table(caption="What differs between the two.", headings=headings, rows=rows)


def _method(results: Sequence[Results]) -> tuple[Part, ...]:
    rows = [
        (
            printable(each.node),
            f"{len(each.pairs)} of {each.design.pairs}",
            *(
                spaced(lasted(round(seconds * NS_PER_SEC)))
                for seconds in (each.design.enforce_s, each.design.pause_s, each.design.washout_s)
            ),
            str(each.design.seed),
        )
        for each in results
    ]
    return (
        Table(
            caption="The seed repeats the order of the blocks.",
            headings=("node", "pairs", *_arms(results).values(), "not measured", "seed"),
            rows=rows,
        ),
        *_differences(results),
        (
            "Each pair has one block of either kind. Their differences have the interval of "
            "Student's t; each node counts as much as any other one.",
            "A verdict needs an interval that leaves out no difference, and an effect of at least "
            "half a point or half a per cent. By chance, one of twenty outcomes without any effect "
            "gets one.",
            "CPU time of best-effort work is not finished work: a job that spins looks like one "
            "that works. Of a job that waits for a disk or the network, its bytes tell more.",
        ),
    )
