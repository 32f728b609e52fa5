# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint top``: a live view of an agent, from its /statusz.

On a terminal with the package rich (the extra ``top``) the view is drawn in place; otherwise, in
a pipe above all, it is plain lines, a block per page.
"""

import argparse
from collections.abc import Iterator
import json
import sys
import threading
from typing import TYPE_CHECKING

from controller.cli.common import DONE, FAILED, WRONG, add_agent, add_source, fail

if TYPE_CHECKING:
    from controller.cli.top_pages import Page, SourceError
    from controller.page.view import Tracker, View

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main", "plain")

HELP = "watch services, best-effort work and decisions of an agent"
EXAMPLE = "sweetpoint top --service web"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    add_agent(parser)
    add_source(parser)
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="default: %(default)s"
    )
    parser.add_argument(
        "--once", action="store_true", help="print one page, after one interval, and end"
    )
    parser.add_argument("--service", metavar="NAME", help="one service in detail")
    parser.add_argument(
        "--filter", default="*", metavar="GLOB", help="services and workloads with such a name"
    )
    parser.add_argument("--sort", choices=("harm", "use", "name"), default="harm")
    parser.add_argument("--raw", action="store_true", help="print each page as one line of JSON")


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 no agent answered, 2 wrong options or configuration."""
    from controller.cli.top_pages import SourceError, pages
    from controller.config.yaml_document import ConfigError
    from controller.page.view import Tracker

    if not 0.1 <= arguments.interval <= 3600:
        return fail("--interval must be between 0.1 and 3600", WRONG)
    try:
        stop = threading.Event()
        found = pages(arguments, stop)
        if arguments.raw:
            for page in found:
                if not isinstance(page, SourceError):
                    print(json.dumps(page), flush=True)
            return DONE
        tracker = Tracker(arguments.filter, arguments.sort, arguments.service)
        return _show(arguments, found, stop, tracker)
    except ConfigError as error:
        return fail(error, WRONG)
    except SourceError as error:
        return fail(error, FAILED)


def _show(
    arguments: argparse.Namespace,
    pages: "Iterator[Page | SourceError]",
    stop: threading.Event,
    tracker: "Tracker",
) -> int:
    if sys.stdout.isatty() and not arguments.once:
        try:
            from controller.cli.top_screen import run
        except ImportError:
            print(f"plain lines, because rich is missing: '{sys.prefix}/bin/pip install rich'")
        else:
            run(pages, stop, tracker, detail=arguments.service is not None)
            return DONE
    for number, page in enumerate(pages):
        if isinstance(page, Exception):
            if arguments.once:
                raise page
            print(f"sweetpoint: {page}", file=sys.stderr)
            continue
        view = tracker.update(page)
        if arguments.once and number == 0:
            continue  # the use of CPUs is the difference of two pages
        print("\n".join(plain(view, detail=arguments.service is not None)), end="\n\n", flush=True)
    return DONE


def plain(view: "View", *, detail: bool = False) -> Iterator[str]:
    """Yield the lines of *view*; with *detail* the trend of each indicator too."""
    from controller.page.view import bar, spark
    from controller.page.words import state_words

    yield view.head
    for note in view.notes:
        yield f"! {note}"
    for row in view.services:
        origin = f" ({row.origin})" if row.origin else ""
        ratio = "" if row.ratio is None else f" ({row.ratio:.2f} times)"
        yield (
            f"service {row.service} {row.indicator} {row.value} of {row.sweet_point}{origin}"
            f"{ratio} [{bar(row.ratio, 10)}] {row.channel} {row.status}"
        )
        if detail:
            yield f"  trend [{spark(row.trend, 60).strip()}]"
    for work in view.workloads:
        use = "-" if work.use_cpus is None else f"{work.use_cpus:.2f}cpu"
        harms = f", {work.blame:.0%} of what hurts {work.harms}" if work.harms else ""
        yield f"workload {work.name} {work.allowance}, uses {use}{harms}"
    for part in view.parts:
        what = " ".join(filter(None, (part.kind, part.name)))
        yield f"hurts {part.service} on {part.channel}: {what} {part.share:.0%}"
    for channel in view.channels:
        what = ", ".join(filter(None, (channel.service, channel.knobs)))
        state = state_words(channel.state)
        yield f"channel {channel.channel} {state} {channel.demand:.0%} {what}".rstrip()
    for text in view.decisions[: None if detail else 5]:
        yield f"decision {text.strip()}"
