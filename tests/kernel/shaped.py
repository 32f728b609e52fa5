# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A host with a shaped uplink, two pods, and three cgroups with a class each."""

from collections.abc import Iterator, Mapping
import contextlib
import itertools
import os
from pathlib import Path
import time
from typing import NamedTuple

from actuators.executor import Executor
from actuators.tc.shape import CLASS_OF_TIER, CLASSIFIED, FIRST_LIMIT, MAJOR
from actuators.tc.tree import Programs, ifb_name
from controller.core.model import Knob, Target
from controller.host.facts import find_cgroup_layout
from controller.probes.qdisc import ClassCounters, QdiscReader
from controller.probes.tc_classifier import Classifier
from tests.kernel.links import BOTH, change, link_executor, load_programs, uplink, veth
from tests.kernel.netns import entered
from tests.kernel.wire import PODS, Host, dump
from tests.support.cgroups import remove_cgroup

__all__ = ("BEST_EFFORT", "LIMITED", "SENSITIVE", "SYSTEM", "Shaped", "shaped_host")

SYSTEM, SENSITIVE, BEST_EFFORT = CLASS_OF_TIER.values()
LIMITED = FIRST_LIMIT
CLASSES = {"web": SENSITIVE, "batch": BEST_EFFORT, "limited": LIMITED}
_numbers = itertools.count()


class Shaped(NamedTuple):
    """The parts of the host. ``cgroups`` are for sockets, below the cgroups that have the class."""

    host: Host
    link: Target
    ifb: int
    executor: Executor
    classifier: Classifier
    reader: QdiscReader
    cgroups: Mapping[str, Path]

    def classify(self, classes: Mapping[str, int] = CLASSES) -> None:
        """Assign *classes* to the cgroups and pods of these names, and none to others."""
        self.classifier.assign(
            cgroups={os.stat(self.cgroups[name].parent).st_ino: c for name, c in classes.items()},
            links={veth(self.host, pod).id: classes[pod] for pod in PODS if pod in classes},
        )

    def counted(self) -> dict[tuple[bool, int], ClassCounters]:
        """Return the counters so far by (whether ingress, class)."""
        classes = [MAJOR << 16 | number for number in (SYSTEM, *CLASSES.values())]
        found = self.reader.poll({self.link.id: classes, self.ifb: classes})
        return {(i == self.ifb, c & 0xFFFF): n for (i, c), n in found.items()}

    def rates(self, seconds: float) -> dict[tuple[bool, int], float]:
        """Measure Mbit/s on the wire by (whether ingress, class) over the next *seconds*."""
        before, started = self.counted(), time.monotonic()
        time.sleep(seconds)
        after, passed = self.counted(), time.monotonic() - started
        return {
            key: (after[key].sent_bytes - before[key].sent_bytes) * 8e-6 / passed for key in before
        }


@contextlib.contextmanager
def shaped_host(state_dir: Path, tree: str = BOTH) -> Iterator[Shaped]:
    """Make the host and enter its network namespace; at the end another executor restores it."""
    unified = find_cgroup_layout().unified
    assert unified is not None, "no cgroup2 tree is mounted"
    root = unified / f"sweetpoint-test-{os.getpid()}-shaped{next(_numbers)}"
    cgroups = {name: root / name / "deep" for name in CLASSES}
    with contextlib.ExitStack() as stack:
        stack.callback(remove_cgroup, root)
        for path in cgroups.values():
            path.mkdir(parents=True)
        classifier = load_programs()
        stack.callback(classifier.close)
        host = stack.enter_context(Host())
        stack.enter_context(entered(host.name))
        executor = link_executor(state_dir, Programs(**classifier.program_fds))
        link, before = uplink(host), dump(host)
        assert change(executor, link, Knob.TC_TREE, tree).applied == tree
        for pod in PODS:
            assert change(executor, veth(host, pod), Knob.TC_MARK, CLASSIFIED).failure is None
        reader = QdiscReader()
        stack.callback(reader.close)
        ifb = host.ifindex(ifb_name(link.id))
        made = Shaped(host, link, ifb, executor, classifier, reader, cgroups)
        made.classify()
        yield made
        assert link_executor(state_dir).restore_all().clean
        assert dump(host) == before
