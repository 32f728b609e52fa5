# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint doctor``: reports what this host supports, what is missing, and how to get it.

A missing feature is part of the report and never an error. Probes are really loaded, each in a
process of its own, because nothing else shows whether the kernel accepts them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
import json
import subprocess

from controller.doctor.fact import Fact
from controller.doctor.knobs import find_knobs
from controller.doctor.optional import find_optional
from controller.doctor.required import find_required
from controller.host.python_child import python_child

__all__ = ("Fact", "Report", "examine", "main", "render_json", "render_text")

# Purpose of each trial, and the modes that cannot work without it.
PROBES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "sched": ("run-queue latency, on-CPU time and blame", ("enforce",)),
    "net": ("network bytes and packets per workload", ()),
    "disk": ("time of requests to disks, and what best-effort inflicts of it", ()),
    "shaping": ("shaping links: bandwidth by tier, and a ceiling for best-effort work", ()),
}
# Modules of the trials that are not in controller.probes.
_MODULES = {"shaping": "controller.reconcilers.network.trial"}
# Compiling and loading takes 0.2 s, and a hundred times as long under emulation.
TRIAL_TIMEOUT_S = 60.0
_MARKS = {True: "have", False: "MISSING", None: "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All facts. ``blocked`` lists for each mode the missing facts without which it cannot work."""

    required: tuple[Fact, ...]
    probes: tuple[Fact, ...]
    optional: tuple[Fact, ...]
    blocked: dict[str, tuple[str, ...]]


def examine(probes: Iterable[str] = PROBES) -> Report:
    """Find all facts and try to load *probes*; takes about half a second."""
    required = find_required()
    tried = tuple(_try_probe(name) for name in probes)
    blocked = {
        mode: tuple(f.name for f in (*required, *tried) if f.have is False and mode in f.modes)
        for mode in ("observe", "enforce")
    }
    return Report(
        required=required, probes=tried, optional=(*find_optional(), *find_knobs()), blocked=blocked
    )


def render_json(report: Report) -> str:
    """Return the report as JSON; ``have`` is true, false or null."""
    return json.dumps(asdict(report), indent=2)


def render_text(report: Report) -> str:
    """Return the report as text for a terminal."""
    facts = (*report.required, *report.probes, *report.optional)
    width = max(len(fact.name) for fact in facts)
    lines: list[str] = []
    # Only what a mode cannot work without is called needed, so that no line contradicts the end.
    better = [fact for fact in report.required if not fact.modes]
    for title, group in (
        ("Needed", [fact for fact in report.required if fact.modes]),
        ("Probes", report.probes),
        ("Optional", (*better, *report.optional)),
    ):
        lines.append(f"{title}:")
        for fact in group:
            lines.append(f"  {_MARKS[fact.have]:8}{fact.name:{width}}  {fact.detail}")
            modes = "" if fact.have or not fact.modes else f"{' and '.join(fact.modes)}: "
            lines.append(f"  {'':8}{'':{width}}  for {modes}{fact.needed_for}")
            if not fact.have and fact.how:
                lines.append(f"  {'':8}{'':{width}}  get it: {fact.how}")
        lines.append("")
    lines += [
        f"{mode}: {_verdict(mode, missing, facts)}" for mode, missing in report.blocked.items()
    ]
    return "\n".join(lines)


def _verdict(mode: str, missing: tuple[str, ...], facts: Iterable[Fact]) -> str:
    if missing:
        return f"missing {', '.join(missing)}"
    unknown = [fact.name for fact in facts if fact.have is None and mode in fact.modes]
    return f"works here, if {' and '.join(unknown)} can be had" if unknown else "works here"


def main(*, as_json: bool = False) -> int:
    """Print the report; the exit code is always 0."""
    report = examine()
    print(render_json(report) if as_json else render_text(report))
    return 0


def _try_probe(name: str) -> Fact:
    module = _MODULES.get(name, f"controller.probes.{name}")
    try:
        done = subprocess.run(
            python_child("controller.doctor.trial", module),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIAL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        works, detail = False, str(error)
    else:
        works, detail = done.returncode == 0, done.stdout.strip()
        if not detail:  # after an exception: the last line of the traceback
            detail = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    needed_for, modes = PROBES.get(name, (name, ()))
    return Fact(
        name=f"probe {name}",
        have=works,
        detail=detail,
        needed_for=needed_for,
        how="see the lines above; the reason comes from the kernel or the compiler",
        modes=modes,
    )
