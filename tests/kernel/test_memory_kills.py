# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that write knobs of memory and are killed by SIGKILL at random steps.

The knobs are memory.high and memory.max of pods, the limit of the cgroup above them (memory.max, on
v1 memory.limit_in_bytes), and the oom_score_adj of their processes. The original values are odd.
Another process that has only the journal puts all of them back.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
import random

import pytest

from actuators.base import Trace
from actuators.core_scheduling.cookie import CoreCookie
from actuators.executor import Executor
from actuators.journal import Journal
from actuators.oom_order import HIGHEST, OOM, OWN, OomOrder
from actuators.registry import build
from controller.core.decision import Action
from controller.core.model import Knob, Target, TargetKind
from controller.host.facts import CgroupLayout
from controller.host.memory import find_memory
from tests.kernel.crashes import assert_restorable, die_at
from tests.kernel.knobs import action, dump, make_child, target_of
from tests.kernel.scored import Scored
from tests.support.cgroups import remove_cgroup

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

PODS = ("a", "b", "c")
MIB = 1 << 20
ROUNDS = 3


class MemoryTree:
    """A cgroup with pods, in the hierarchies of cpu and memory, and a process in two of the pods.

    ``limited`` are the cgroups with knobs of memory, the one above the pods first.
    """

    def __init__(self, layout: CgroupLayout, root: Path, stack: ExitStack) -> None:
        self.layout, self.chance = layout, random.Random()
        memory = find_memory(layout.unified)
        assert memory.mount is not None
        self._hierarchy = memory.hierarchy
        self._file = "memory.max" if memory.version == "v2" else "memory.limit_in_bytes"
        self.has_high = memory.version == "v2"
        if self.has_high:
            (root / "cgroup.subtree_control").write_text("+memory")
        above = make_child(root, "batch")
        pods = [make_child(above, name) for name in PODS]
        self._mount = memory.mount
        self._trees = dict.fromkeys((root, memory.mount / root.relative_to(layout.mount)))
        below = [*self._trees][-1]
        stack.callback(remove_cgroup, below)
        self.limited = [below / "batch", *(below / "batch" / name for name in PODS)]
        for each in self.limited:
            each.mkdir(parents=True, exist_ok=True)
        for each in pods:
            control = each / "cgroup.subtree_control"
            if control.exists():  # a cgroup that passes controllers on has no processes
                control.write_text(" ".join(f"-{name}" for name in control.read_text().split()))
        self.processes = [Scored(score, pod) for score, pod in zip((17, 400), pods, strict=False)]
        for process in self.processes:
            stack.callback(process.end)
        self._oom = [target_of(layout, pod)._replace(scope=OOM) for pod in pods[:2]]

    def odd_originals(self) -> None:
        """Give the files values that no agent would set."""
        for each in self.limited:
            names = [self._file, *(["memory.high"] if self.has_high else [])]
            for name in names:
                amount = self.chance.randint(150 * MIB, 900 * MIB)
                none = "max" if self.has_high else "-1"
                (each / name).write_text(self.chance.choice([none, str(amount), str(amount)]))

    def values(self) -> dict[str, str]:
        """Return the texts of all files, and the values of the processes."""
        files = {f"{tree}/{k}": text for tree in self._trees for k, text in dump(tree).items()}
        scores = {str(each.process.pid): str(each.value) for each in self.processes}
        return files | scores

    def run(self, state_dir: Path, seed: int) -> Callable[[Trace], None]:
        """Return a function that writes the knobs in some rounds by *seed*, and restores them."""

        def body(trace: Trace) -> None:
            chance = random.Random(seed)
            order = OomOrder(self.layout, state_dir)
            actuators = build(self.layout, CoreCookie(state_dir), order)
            agent = Executor(Journal(state_dir / "journal", trace), actuators, trace)
            for now_ns in range(ROUNDS):
                actions = [*self._sizes(agent, chance), *self._scores(agent, order, chance)]
                chance.shuffle(actions)
                outcomes = agent.execute(actions, now_ns=now_ns)
                assert not any(each.failure or each.foreign for each in outcomes), outcomes
            assert agent.restore_all().clean

        return body

    def _sizes(self, agent: Executor, chance: random.Random) -> Iterator[Action]:
        knobs = (Knob.MEMORY_MAX, *([Knob.MEMORY_HIGH] if self.has_high else []))
        for cgroup in self.limited:
            path = "/" + str(cgroup.relative_to(self._mount))
            target = Target(TargetKind.CGROUP, self._hierarchy, cgroup.stat().st_ino, path)
            for reading in agent.read([target], knobs):
                value = str(chance.randint(100, 800) * MIB)
                yield action(target, reading.knob, reading.value, value)

    def _scores(self, agent: Executor, order: OomOrder, chance: random.Random) -> Iterator[Action]:
        for target in self._oom:
            order.look(target, 100)
            (reading,) = agent.read([target], {Knob.OOM_SCORE_ADJ})
            value = chance.choice([HIGHEST, HIGHEST, OWN])
            if value != reading.value:
                yield action(target, Knob.OOM_SCORE_ADJ, reading.value, value)


def test_memory_knobs_are_as_before_after_random_kills(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> None:
    died = check(cgroup_layout, cgroup_root, tmp_path, 40)
    assert len({each.partition("=")[0] for each in died}) >= 5, died


def check(layout: CgroupLayout, root: Path, scratch: Path, count: int) -> set[str]:
    """Kill *count* times and compare all files; return the steps at which a process died."""
    seed = random.randrange(1 << 32)
    died = set()
    with ExitStack() as stack:
        tree = MemoryTree(layout, root, stack)
        tree.chance.seed(seed)
        for number in range(count):
            tree.odd_originals()
            before = tree.values()
            steps: list[str] = []
            tree.run(scratch / f"{number}-whole", number)(steps.append)
            assert tree.values() == before, (seed, number)
            step = tree.chance.randrange(len(steps))
            state_dir = scratch / str(number)
            name = die_at(step, tree.run(state_dir, number))
            assert name is not None, (seed, number)
            died.add(name)
            assert_restorable(layout, state_dir, (seed, number, name))
            assert tree.values() == before, (seed, number, name)
    return died
