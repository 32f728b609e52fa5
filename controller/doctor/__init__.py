# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint doctor``: what this host can do, what is off and why, how to get it.

It never fails because something is missing: finding that out is its purpose. Probes are tried
for real, each in a process of its own, because only a load tells.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
import json
import subprocess
import sys

from controller.doctor.fact import Fact
from controller.doctor.knobs import find_knobs
from controller.doctor.optional import find_optional
from controller.doctor.required import find_required

__all__ = ("Fact", "Report", "examine", "main", "render_json", "render_text")

# What each is for, and the modes that cannot work without it.
PROBES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "sched": ("run-queue latency, on-CPU time and blame", ("enforce",)),
    "net": ("network bytes and packets per workload", ()),
    "shaping": ("shaping links: bandwidth by tier, and a ceiling for best-effort work", ()),
}
# Where the others are not probes.
_MODULES = {"shaping": "controller.reconcilers.network.trial"}
# Compiling and loading takes a fifth of a second, and a hundred times that under emulation.
TRIAL_TIMEOUT_S = 60.0
_TRIAL = (
    "import importlib, sys; works, said = importlib.import_module(sys.argv[1]).trial(); "
    "print(said); sys.exit(not works)"
)
_MARKS = {True: "have", False: "MISSING", None: "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything found. ``blocked`` names, for each mode, the facts that stand in its way."""

    required: tuple[Fact, ...]
    probes: tuple[Fact, ...]
    optional: tuple[Fact, ...]
    blocked: dict[str, tuple[str, ...]]


def examine(probes: Iterable[str] = PROBES) -> Report:
    """Ask the host everything and try to load *probes*; takes about half a second."""
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
    """Return the report for a person."""
    facts = (*report.required, *report.probes, *report.optional)
    width = max(len(fact.name) for fact in facts)
    lines: list[str] = []
    for title, group in (
        ("Needed", report.required),
        ("Probes", report.probes),
        ("Optional", report.optional),
    ):
        lines.append(f"{title}:")
        for fact in group:
            lines.append(f"  {_MARKS[fact.have]:8}{fact.name:{width}}  {fact.detail}")
            lines.append(f"  {'':8}{'':{width}}  for {fact.needed_for}")
            if not fact.have and fact.how:
                lines.append(f"  {'':8}{'':{width}}  get it: {fact.how}")
        lines.append("")
    for mode, missing in report.blocked.items():
        lines.append(f"{mode}: {'missing ' + ', '.join(missing) if missing else 'works here'}")
    return "\n".join(lines)


def main(*, as_json: bool = False) -> int:
    """Print the report; the exit code is always 0."""
    report = examine()
    print(render_json(report) if as_json else render_text(report))
    return 0


def _try_probe(name: str) -> Fact:
    module = _MODULES.get(name, f"controller.probes.{name}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRIAL, module],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRIAL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        works, said = False, str(error)
    else:
        works, said = done.returncode == 0, done.stdout.strip()
        if not said:  # it died: the last line of a traceback is the exception
            said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    needed_for, modes = PROBES.get(name, (name, ()))
    return Fact(
        name=f"probe {name}",
        have=works,
        detail=said,
        needed_for=needed_for,
        how="see the lines above; the reason is the kernel's or the compiler's",
        modes=modes,
    )
