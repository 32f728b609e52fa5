# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Up to a thousand workloads below the cgroups of a site."""

from pathlib import Path

from tests.kernel.agent import Site

__all__ = ("BEARS", "crowd")

# All services are well, whatever else runs on the machine.
BEARS = """\
name: nginx
indicators:
  runq_delay_p99: {sweet_point: 500ms}
  runq_p99: {sweet_point: 500ms}
  cpu_per_packet: {sweet_point: 1s}
"""


def crowd(site: Site, services: int, batch: int, extra: str = "") -> tuple[list[Path], list[Path]]:
    """Make *services* and *batch* cgroups, and the configuration of an agent with them.

    Those that *site* has are the first ones. *extra* is more of the configuration.
    """
    more = [site.root / f"service{number}" for number in range(services - 1)]
    jobs = [site.root / "batch" / f"job{number}" for number in range(batch - len(site.batch))]
    for path in (*more, *jobs):
        path.mkdir()
    site.write(
        f'  - {{name: more, cgroup: "{site.path(site.root)}/service*", '
        f"class: latency-sensitive, profile: nginx}}\n{extra}"
    )
    return [site.service, *more], [*site.batch, *jobs]
