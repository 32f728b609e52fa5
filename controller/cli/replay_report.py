# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a replay: what the new plans do over time, beside the recorded ones."""

from collections.abc import Iterator
from pathlib import Path

from controller.agent.recording import Entry
from controller.core.decision import Plan
from controller.core.model import CgroupId
from controller.host.names import printable
from controller.page.document import Document, Fold, Part, Section, Table, Text, render
from controller.page.hours import Hours, sections

__all__ = ("ReplayReport",)

# The narrowest bucket; a long recording gets wider ones, so that a chart has at most 720 points.
_WIDTH_NS = 200_000_000
_BUCKETS = 720
_DECISIONS = 200


class ReplayReport:
    """Takes the ticks of a replay; ``write`` makes the page of them."""

    def __init__(self) -> None:
        self._hours = Hours(_WIDTH_NS, _BUCKETS, widest_ns=None)
        self._names: dict[CgroupId, str] = {}
        self._decisions: list[str] = []
        # CLOCK_MONOTONIC starts again at a boot; the page goes on from there.
        self._boot_ns = 0
        self._last_ns: int | None = None
        self._first_ns: int | None = None
        # Sums of the demands by channel: recorded, replayed.
        self._demands: dict[str, tuple[float, float]] = {}
        self._ticks = 0
        self._different = 0

    def watch(self, replayed: Iterator[tuple[Entry, Plan]]) -> Iterator[tuple[Entry, Plan]]:
        """Yield *replayed* unchanged, and take each tick of it."""
        for entry, plan in replayed:
            self._take(entry, plan)
            yield entry, plan

    def write(self, path: Path, source: Path) -> None:
        """Write the page of the replay of *source* to *path*.

        :raises OSError: the file cannot be written.
        """
        rows = [
            (channel, f"{before / self._ticks:.3f}", f"{after / self._ticks:.3f}")
            for channel, (before, after) in self._demands.items()
        ]
        document = Document(
            title="sweetpoint replay",
            lead=f"{printable(str(source))}: {self._ticks} ticks, {self._different} plans differ "
            "from the recorded ones. What was measured does not react to what is replayed.",
            sections=(
                Section(
                    title="Mean demand of the channels",
                    parts=(
                        Table(
                            caption="0 leaves best-effort work free, 1 squeezes it to the floor.",
                            headings=("channel", "recorded", "replayed"),
                            rows=rows,
                        ),
                    ),
                ),
                *sections(self._hours),
                Section(title="Decisions", parts=(self._decided(),)),
            ),
        )
        path.write_text("".join(render(document)), encoding="utf-8", errors="backslashreplace")

    def _decided(self) -> Part:
        if not self._decisions:
            return Text("Nothing was decided.", "soft")
        count = f"{len(self._decisions)}{' or more' * (len(self._decisions) == _DECISIONS)}"
        return Fold(title=f"{count} decisions", parts=(tuple(self._decisions),))

    def _take(self, entry: Entry, plan: Plan) -> None:
        self._ticks += 1
        self._different += plan != entry.plan
        if entry.workloads is not None:
            self._names.update((each.cgroup, each.name) for each in entry.workloads)
        if self._last_ns is not None and self._boot_ns + plan.time_ns < self._last_ns:
            self._boot_ns = self._last_ns - plan.time_ns
        time_ns = self._last_ns = self._boot_ns + plan.time_ns
        if self._first_ns is None:
            self._first_ns = time_ns
        texts = [printable(f"{each.subject}: {each.text}") for each in plan.verdicts]
        second = (time_ns - self._first_ns) / 1e9
        left = max(0, _DECISIONS - len(self._decisions))
        self._decisions += [f"{second:.1f} s  {text}" for text in texts[:left]]
        self._hours.take(
            time_ns,
            loops=plan.loops,
            demands=plan.demands,
            causes=plan.causes,
            names=lambda cgroup: self._names.get(cgroup, f"cgroup {cgroup.id}"),
            events=texts,
        )
        recorded = {each.channel: each.applied for each in entry.plan.demands}
        for demand in plan.demands:
            before, after = self._demands.get(demand.channel, (0.0, 0.0))
            before += recorded.get(demand.channel, 0.0)
            self._demands[demand.channel] = before, after + demand.applied
