# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint explain`` of knobs that several workloads share: cookies, a parent, a group."""

from dataclasses import replace
from pathlib import Path

from controller.core.model import (
    Knob,
    KnobValue,
    Mode,
    Pause,
    Snapshot,
    Target,
    TargetKind,
    Workload,
)
from controller.core.settings import CoreMode, CoreSettings, Settings
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.sim.explaining import Explain, incidents
from tests.sim.plants import CacheNode, NetworkNode
from tests.support.loops.closed_loop import LAW, make_settings
from tests.support.loops.history_loop import RecordedLoop
from tests.support.loops.resource_loop import resource_settings, resource_spec

_GROUP = Target(TargetKind.CORE_GROUP, "core", 9, "best-effort")


class SharedCores(CacheNode):
    """A cache node whose service has ``extra`` times its CPI as long as no cookie helps it."""

    extra = 1.2
    helps = True
    overlap: float | None = 0.5

    def __init__(self) -> None:
        super().__init__(1)
        self.knobs.add(_GROUP, Knob.CORE_COOKIE, KnobValue("0"))

    @property
    def has_cookie(self) -> bool:
        return self.knobs.value(_GROUP.id, Knob.CORE_COOKIE) != "0"

    def snapshot(self, now_ns: int) -> Snapshot:
        self.scale = 1.0 if self.has_cookie and self.helps else self.extra
        shared = None if self.overlap is None else 0.0 if self.has_cookie else self.overlap
        return replace(super().snapshot(now_ns), core_overlap_ratio=shared)


def cookie_settings(node: SharedCores, mode: Mode = Mode.ENFORCE) -> Settings:
    settings = resource_settings(node, [resource_spec(CacheNode)], mode=mode)
    profile = replace(settings.profiles["default"], sched_idle=True)
    core = CoreSettings(mode=CoreMode.AUTO)
    return replace(settings, profiles={"default": profile}, core=core)


def cookie_loop(data_dir: Path, mode: Mode = Mode.ENFORCE) -> RecordedLoop[SharedCores]:
    node = SharedCores()
    return RecordedLoop(node, cookie_settings(node, mode), data_dir)


def test_a_cookie_that_helped(data_dir: Path, explain: Explain) -> None:
    loop = cookie_loop(data_dir)
    loop.run(60)
    assert loop.node.has_cookie
    loop.node.wants = [0.0, 0.0]
    loop.run(300)
    assert not loop.node.has_cookie
    loop.stop()
    (cookie,) = incidents(explain, "batch-0", "cookie")
    assert (cookie["service"], cookie["group"], cookie["helped"]) == ("web", "best-effort", True)
    assert (cookie["overlap_before_ratio"], cookie["overlap_ratio"]) == (0.5, 0.0)
    assert cookie["summary"].startswith(
        "best-effort kept off the cores of services by a core-scheduling cookie for "
    )
    assert cookie["summary"].endswith(" because of web on cache")
    text = explain("batch-0")
    assert cookie["summary"] in text
    assert "why       services shared cores with it for 50% of their time, deviation " in text
    assert "sharing   services shared a core with it for 50% of their time before, 0%" in text
    assert "effect    it helped: deviation " in text
    assert "end       the cache channel has not needed them for a while" in text
    assert incidents(explain, "web", "cookie") == [cookie]
    rows = [line for line in explain("web").splitlines() if "tried     core.cookie" in line]
    assert rows == ["    tried     core.cookie of best-effort: off -> on"]


def test_a_cookie_in_vain(data_dir: Path, explain: Explain) -> None:
    loop = cookie_loop(data_dir)
    loop.node.extra, loop.node.helps = 3.0, False
    loop.run(40)
    loop.stop()
    (cookie,) = incidents(explain, "batch-0", "cookie")
    assert cookie["helped"] is False
    assert cookie["ended_by"].startswith("they do not help (deviation ")
    text = explain("batch-0")
    assert "effect    it did not help (deviation " in text
    assert "with them); next try after " in text


def test_a_pause_of_one_workload_ends_its_cookie_only(data_dir: Path, explain: Explain) -> None:
    loop = cookie_loop(data_dir)
    loop.run(60)
    loop.pause = Pause(workloads=("batch-0",))
    loop.run(10)
    loop.pause = None
    loop.run(10)
    loop.stop()
    before, after = incidents(explain, "batch-0", "cookie")
    assert before["ended_by"] == "paused"
    assert before["ended"] < after["began"]
    (other,) = incidents(explain, "batch-1", "cookie")
    assert (other["began"], other["ended"]) == (before["began"], after["ended"])
    # What was found out about cookies holds for one that joins later.
    assert after["service"] == "web" and after["helped"]


def test_a_cookie_that_was_only_observed(data_dir: Path, explain: Explain) -> None:
    loop = cookie_loop(data_dir, Mode.OBSERVE)
    loop.run(60)
    loop.stop()
    assert not loop.node.has_cookie
    first, *_ = incidents(explain, "batch-0", "cookie")
    assert (first["helped"], first["verdict"]) == (None, "")
    text = explain("batch-0")
    assert "best-effort would have been kept off the cores of services (observe mode)" in text
    assert "effect    not known: nothing was written" in text
    assert "they do not help" not in text


def test_no_cookie_no_line(data_dir: Path, explain: Explain) -> None:
    loop = cookie_loop(data_dir)
    loop.node.overlap = None  # no sibling threads
    loop.run(60)
    loop.stop()
    assert incidents(explain, "batch-0", "cookie") == []
    assert "cookie" not in explain("batch-0")


MANY = 400


def squeezed(data_dir: Path, mode: Mode = Mode.ENFORCE) -> RecordedLoop[SimulatedNode]:
    """Return a loop whose squeeze needs a quota on the common parent, see ``test_many``."""
    plant = Plant(cpus=16, p99_at_cpus=0.05, noise=0.0)
    node = SimulatedNode(1, plant, wants=[16 / MANY] * MANY)
    node.join_parent()
    settings = make_settings(cpus=16, mode=mode, law=replace(LAW, verify_squeeze=False))
    loop = RecordedLoop(node, settings, data_dir)
    loop.run(15)
    return loop


def test_a_quota_on_the_common_parent(data_dir: Path, explain: Explain) -> None:
    loop = squeezed(data_dir)
    loop.node.request_rate = 0.0
    loop.run(60)
    loop.stop()
    (squeeze,) = incidents(explain, "batch-7", "squeeze")
    knobs = {each["target"]: each["shared_by"] for each in squeeze["knobs"]}
    assert knobs == {"/batch-7": None, "/batch": MANY}
    start = "limited, also through its parent /batch (shared by 400 workloads) for "
    assert squeeze["summary"].startswith(start)
    assert squeeze["ended_by"] == "released: no service is above its sweet point"
    text = explain("batch-7")
    assert start in text and "because of web-0 on cpu" in text
    assert (
        "cpu.quota of /batch, the parent of 400 best-effort workloads: unlimited -> 0.32cpu" in text
    )
    # The service's story names it before the quotas of some of the 400.
    rows = [line.split() for line in explain("web-0").splitlines() if " tried " in line]
    assert rows[0][1:4] == ["cpu.quota", "of", "/batch,"]
    assert rows[-1][1:] == ["and", "391", "more"]


class LateLink(NetworkNode):
    """A node of one link, whose ceiling limits all best-effort work.

    The last best-effort workload is a workload only if it is not ``late``.
    """

    late = True

    @property
    def workloads(self) -> tuple[Workload, ...]:
        return super().workloads[:-1] if self.late else super().workloads


def test_a_pause_and_a_late_start_under_a_knob_of_all(data_dir: Path, explain: Explain) -> None:
    node = LateLink(1)
    loop = RecordedLoop(node, resource_settings(node, [resource_spec(NetworkNode)]), data_dir)
    loop.run(30)
    node.late = False
    loop.run(30)
    loop.pause = Pause(workloads=("batch-0",))
    loop.run(10)
    loop.pause = None
    loop.run(20)
    loop.stop()
    first, second = incidents(explain, "batch-0", "squeeze")
    assert first["ended_by"] == "released: paused"
    begins, ends = incidents(explain, "batch-0", "note")
    assert (first["ended"], second["began"]) == (begins["began"], ends["began"])
    assert [each["target"] for each in second["knobs"]] == ["eth0"]
    assert second["knobs"][0]["before"] == "25000000 25000000"
    # The ceiling was there before this one was.
    (other,) = incidents(explain, "batch-1", "squeeze")
    assert first["began"] < other["began"] < begins["began"] < other["ended"]


def test_a_pause_of_one_ends_the_quota_of_the_parent(data_dir: Path, explain: Explain) -> None:
    loop = squeezed(data_dir)
    loop.pause = Pause(workloads=("batch-7",))
    loop.run(5)
    loop.stop()
    (squeeze,) = incidents(explain, "batch-7", "squeeze")
    assert squeeze["ended_by"] == "released: paused"
    (other,) = incidents(explain, "batch-8", "squeeze")
    assert other["ended_by"] == "the agent was stopped, and restored every knob"
