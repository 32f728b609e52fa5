# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the processes of a start import: on an overloaded node imports are most of its time."""

from functools import cache
import subprocess
import sys

import pytest

from tests.support.waiting import DEADLINE_S

# Of the child that prepares the start, and of an agent without cluster, sources and shaped links.
_CHILD = "import controller.cli.main, controller.host.own_cgroup, controller.config.state_dir"
_AGENT = "import controller.agent.agent"


def output_of(code: str) -> str:
    """Return what *code* prints in a new interpreter."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE_S)
    return done.stdout


@cache
def imported(statement: str) -> frozenset[str]:
    """Return the modules that *statement* imports."""
    return frozenset(output_of(f"{statement}, sys; print(*sys.modules, sep='\\n')").split())


def loaded_of(modules: frozenset[str], names: set[str]) -> set[str]:
    return {name for name in names if any(f"{each}.".startswith(f"{name}.") for each in modules)}


def test_the_child_that_prepares_the_start_imports_no_models() -> None:
    modules = imported(_CHILD)
    assert "controller.config.state_dir" in modules
    heavy = {"pydantic", "numpy", "controller.core.model", "controller.core.settings"}
    assert not loaded_of(modules, heavy)


@pytest.mark.parametrize(
    "names",
    [
        {"asyncio", "controller.probes.service_level.fetch"},
        {"kubernetes", "urllib3", "controller.kube.cluster", "controller.kube.client.api"},
        {"pyroute2", "controller.reconcilers.network.links"},
        {"prometheus_client", "controller.telemetry.metrics.exporter"},
        {"bcc", "controller.doctor", "controller.demo"},
    ],
)
def test_the_agent_imports_what_it_uses(names: set[str]) -> None:
    modules = imported(_AGENT)
    assert "controller.agent.node" in modules
    assert not loaded_of(modules, names)


def test_no_schema_of_recordings_is_made_at_the_start() -> None:
    modules = "from controller.agent import recording; from controller.agent.history import records"
    sizes = "*(each._adapter.cache_info().currsize for each in (recording, records))"
    assert output_of(f"{_AGENT}; {modules}; print({sizes})") == "0 0\n"
