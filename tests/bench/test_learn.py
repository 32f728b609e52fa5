# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Two runs of ``sweetpoint learn`` on a real service, which must agree.

Each run starts the program anew and knows nothing of the other one. Nothing may run beside the
service for most of the time: otherwise there is no profile, and the reason is printed.
"""

from pathlib import Path
import subprocess
import sys

import pytest

from controller.config.fields import check
from controller.config.models import ProfileModel
from controller.config.profile import build_profile
from controller.config.yaml_document import parse_document
from controller.core.units import NS_PER_SEC
from tests.bench.served import RATE, Scene

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

# Sixty undisturbed seconds, and some that are not.
SECONDS = 100
# The larger one of two sweet points over the smaller one.
AGREE = 1.35
CONFIG = """\
state_dir: {home}/state
data_dir: {home}/data
workloads:
  - {{name: {name}, cgroup: {path}, class: latency-sensitive}}
"""


def learn(config: Path, name: str) -> dict[str, list[float]]:
    """Run ``sweetpoint learn``; return the sweet points by indicator, those of bins at the end."""
    command = [sys.executable, "-m", "controller.cli.main", "learn", "--config", str(config)]
    done = subprocess.run(
        [*command, "--for", f"{SECONDS}s", name], capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    document = parse_document(done.stdout, "learned")
    model = check(document, ProfileModel)
    profile = build_profile(document, model, NS_PER_SEC // 5, evicts=False)
    return {
        spec.name: [
            point
            for point in (spec.sweet_point, *(each.sweet_point for each in spec.bins))
            if point is not None
        ]
        for spec in profile.indicators
    }


@pytest.mark.parametrize("service", ["memcached", "redis", "nginx"])
def test_two_runs_agree(service: str, scene: Scene) -> None:
    config = scene.home / "config.yaml"
    path = scene.workload.path
    config.write_text(CONFIG.format(home=scene.home, name=service, path=path))
    with scene.serving(service) as traffic:
        first, second = learn(config, service), learn(config, service)
        traffic.check()
    print(f"\n{service}, {RATE} requests/s, two runs of {SECONDS} s")
    assert "cpu_per_packet" in first.keys() & second.keys()
    for name in sorted(first.keys() & second.keys()):
        low, high = sorted((max(first[name]), max(second[name])))
        print(f"  {name}: {low:.4g} and {high:.4g}, {high / low - 1:.1%} apart")
        assert high / low <= AGREE, name
