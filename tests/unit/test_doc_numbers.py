# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers in documents that come from constants are those of the code."""

import importlib
from pathlib import Path
import re

import pytest

from controller.config.models import ConfigModel
from controller.config.sections.eviction import LimitsModel
from controller.core.units import NS_PER_MS, NS_PER_SEC

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").glob("*.md"))
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# A number in digits or as a word.
N = rf"([\d,.]+|{'|'.join(_WORDS)})"


def constant(place: str) -> float:
    """Return the constant NAME of the module in *place*, ``MODULE.NAME``, below ``controller``."""
    module, _, name = place.rpartition(".")
    return float(getattr(importlib.import_module(f"controller.{module}"), name))


def seconds(place: str) -> float:
    return constant(place) / NS_PER_SEC


def defined(file: str, name: str) -> float:
    """Return the number of ``#define NAME`` in a source of a BPF program."""
    found = re.search(rf"^#define {name} (\d+)", (ROOT / file).read_text(), re.MULTILINE)
    assert found
    return float(found[1])


def tick_ms() -> float:
    return float(ConfigModel.model_validate({}).tick) / NS_PER_MS


def rule(alert: str, pattern: str) -> float:
    """Return the number that *pattern* finds in the text of the rule *alert*."""
    text = (ROOT / "deploy/rules/sweetpoint.yaml").read_text()
    found = re.search(rf"alert: {alert}\n.*?{pattern}", text, re.DOTALL)
    assert found
    return float(found[1])


CALM_MS = tick_ms() * constant("core.planner._CALM_TICKS")
# (pattern of what documents say, the number in the code)
STATED = (
    (rf"next tick \({N} ms;", tick_ms()),
    (rf"next tick \(\S+ ms; {N} ms while best-effort", CALM_MS),
    (rf"or {N} seconds while all services are asleep", seconds("core.looks.LONGEST_NS")),
    (rf"more than {N} % off is replaced", 100 * constant("probes.pressure_alarm._FAR")),
    (rf"Pages are at most {N} seconds old", seconds("core.looks.LONGEST_NS")),
    (rf"ticks? (?:come )?every {N} ms while best-effort", CALM_MS),
    (rf"schedule, and every {N} ms while best-effort", CALM_MS),
    (rf"pages and tries again every {N} s\b", constant("telemetry.http._RETRY_S")),
    (rf"then a pause of {N} times its CPU time", constant("telemetry.http_limits._PAUSE_RATIO")),
    (rf"at most {N} rows a table", constant("page.node._MOST")),
    (rf"With {N} workloads and more, requests share", constant("telemetry.http._SHARED_FROM")),
    (rf"Above {N} connections", constant("telemetry.http_limits._MAX_CONNECTIONS")),
    (rf"connections, or {N} of one peer", constant("telemetry.http_limits._MAX_OF_PEER")),
    (rf"may send {N} requests a second", constant("telemetry.http_limits._MAX_RATE")),
    (rf"There are at most {N} at a time", constant("host.pause_file.MAX_ENTRIES")),
    (rf"at most {N} days", constant("host.pause_file.LONGEST_S") / 86_400),
    (
        rf"kernel refuses is tried again every {N} seconds",
        seconds("agent.knob_writer._RELEASE_AGAIN_NS"),
    ),
    (rf"after {N} in a row the agent ends", constant("agent.agent._FAILED_TICKS")),
    (rf"more than {N} levels below the root", defined("bpf/include/ancestors.h", "CGROUP_LEVELS")),
    (rf"ring of its last {N} changes", defined("bpf/sched.bpf.c", "RING")),
    (rf"configuration {N} are taken per scan", constant("workloads.intake._MOST")),
    (rf"takes at most {N} new workloads per scan", constant("workloads.intake._MOST")),
    (rf"knobs of at most {N} new cgroups per tick", constant("agent.knob_poller._MAX_NEW")),
    (rf"Each node evicts at most {N} an hour", LimitsModel().per_hour),
    (rf"At most {N} profiles and", constant("config.profile_set.MAX_PROFILES")),
    (rf"profiles and {N} KiB", constant("config.profile_set.MAX_CHARS") / 1024),
    (rf"not tried again for {N} minutes", seconds("kube.pod_eviction._FORBIDDEN_NS") / 60),
    (rf"up to {N} at once, then 1 write per minute", constant("kube.events._BURST")),
    (rf"\({N} heartbeats, so", constant("kube.reclaimable_capacity._VALID_HEARTBEATS")),
    (rf"{N} minutes after the last such", seconds("workloads.pods.other_agents._KEEP_NS") / 60),
    (rf"keeps parts of at most {N};", constant("kube.client.watch._MAX_OBJECTS")),
    (rf"auto \({N} % of the link", 100 * constant("reconcilers.network.device._AUTO_SHARE")),
    (rf"{N} flows are recorded", constant("probes.tc_classifier._MAX_FLOWS")),
    (
        rf"Above {N} datagrams a second",
        constant("probes.service_level.push._PER_WINDOW")
        / constant("probes.service_level.push._WINDOW_S"),
    ),
    (rf"more than {N} matching lines", constant("probes.service_level.parse._MAX_CANDIDATES")),
    (rf"ring of up to {N} files", constant("host.ring._FILES") + 1),
    (rf"at most {N} MiB, written every", constant("agent.learned._MAX_BYTES") / 2**20),
    (rf"MiB, written every {N} minutes", seconds("agent.learned._EVERY_NS") / 60),
    (rf"no tick for {N} minutes", rule("SweetpointLoopStalled", r"\[(\d+)m\]")),
    (rf"More than {N} % of ticks", 100 * rule("SweetpointLoopOverrun", r"> ([\d.]+)")),
    (rf"run on the node for {N} minutes and", rule("SweetpointUnlistedPods", r"for: (\d+)m")),
    (
        rf"knob in the label `knob` for {N} minutes",
        rule("SweetpointActuatorWriteFailing", r"\[(\d+)m"),
    ),
    (rf"sweet point for more than {N} minutes", rule("SweetpointMissed", r"for: (\d+)m")),
)


def number(text: str) -> float:
    word = text.lower()
    return float(_WORDS.index(word) if word in _WORDS else word.replace(",", "").rstrip("."))


@pytest.mark.parametrize(("pattern", "value"), STATED, ids=lambda each: str(each)[:40])
def test_documents_state_the_numbers_of_the_code(pattern: str, value: float) -> None:
    texts = [(path.name, " ".join(path.read_text().split())) for path in DOCUMENTS]
    found = [
        (name, number(each)) for name, text in texts for each in re.findall(pattern, text, re.I)
    ]
    assert found, "no document says it any more: remove the pattern, or adapt it"
    assert [(name, each) for name, each in found if each != pytest.approx(value)] == []
