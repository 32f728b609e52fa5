# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Trees, pod filters and ceilings on real links: made, changed, refused, and fully undone."""

from collections.abc import Iterator
import ctypes
import errno
import os
from pathlib import Path

import pytest

from actuators.base import Restored, Trace
from actuators.tc.netlink import Netlink
from actuators.tc.shape import ABSENT, ABSENT_CLSACT, CLASSIFIED
from actuators.tc.tree import Programs
from controller.core.decision import Failure
from controller.core.model import Knob
from tests.kernel.crashes import at_steps, die_at
from tests.kernel.links import (
    BOTH,
    EGRESS_ONLY,
    change,
    link_executor,
    load_programs,
    uplink,
    veth,
)
from tests.kernel.netns import entered
from tests.kernel.wire import Host, dump

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

TCX_INGRESS = 46
# A filter of another program.
FOREIGN = ("protocol", "ip", "prio", "9", "u32", "match", "u32", "0", "0", "flowid", "1:1")

CLASS = ("class", "change", "dev", "up0", "parent", "5357:100", "classid", "5357:2", "htb")


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    classifier = load_programs()
    yield Programs(**classifier.program_fds)
    classifier.close()


@pytest.fixture
def host() -> Iterator[Host]:
    """A new host, with this thread in its network namespace."""
    with Host() as made, entered(made.name):
        yield made


def tc(host: Host, *words: str) -> None:
    """Run tc, as another program does."""
    host.inside(host.name, "tc", *words)


def restored(host: Host, state_dir: Path, before: list[str]) -> None:
    """Undo everything as another process does, which has loaded no BPF programs."""
    report = link_executor(state_dir).restore_all()
    assert report.clean, report
    assert not list((state_dir / "journal").iterdir())
    assert dump(host) == before


def test_all_knobs_and_back(host: Host, programs: Programs, tmp_path: Path) -> None:
    before = dump(host)
    executor = link_executor(tmp_path, programs)
    link, pod = uplink(host), veth(host, "batch")
    assert change(executor, link, Knob.TC_TREE, BOTH).applied == BOTH
    assert change(executor, link, Knob.TC_CEILING, "5000000 1000").applied == "5000000 1000"
    assert change(executor, pod, Knob.TC_MARK, CLASSIFIED).applied == CLASSIFIED
    shown = "\n".join(dump(host))
    assert "ceil 40Mbit" in shown and "ceil 8Kbit" in shown and "swp" in shown
    assert "sweetpoint_mark" in shown and "mirred (Egress Redirect" in shown
    restored(host, tmp_path, before)


def test_killed_at_every_step(host: Host, programs: Programs, tmp_path: Path) -> None:
    """After the restore the state is the same as before, at whichever step the process died."""
    link, pod = uplink(host), veth(host, "batch")
    before, state_dir = dump(host), tmp_path

    def life(trace: Trace) -> None:
        agent = link_executor(state_dir, programs, trace)
        for target, knob, value in (
            (link, Knob.TC_TREE, BOTH),
            (pod, Knob.TC_MARK, CLASSIFIED),
            (link, Knob.TC_CEILING, "5000000 6000000"),
        ):
            assert change(agent, target, knob, value).applied == value
        assert agent.restore_all().clean

    def crash(number: int) -> str | None:
        nonlocal state_dir
        state_dir = tmp_path / str(number)
        step = die_at(number, life)
        restored(host, state_dir, before)
        return step

    steps = at_steps(crash)
    writes = [step for step in steps if step.startswith(("before write", "after write"))]
    assert len(writes) > 40
    assert "before write clsact" in steps and "after write no ifb" in steps
    assert len([step for step in steps if step == "after journal rename"]) >= 3


def test_existing_hooks_stay(host: Host, programs: Programs, tmp_path: Path) -> None:
    tc(host, "qdisc", "add", "dev", "up0", "clsact")
    tc(host, "qdisc", "add", "dev", "veth-batch", "clsact")
    before = dump(host)
    executor = link_executor(tmp_path, programs)
    for target, knob, value in (
        (uplink(host), Knob.TC_TREE, BOTH),
        (veth(host, "batch"), Knob.TC_MARK, CLASSIFIED),
    ):
        (reading,) = (r for r in executor.read([target]) if r.knob is knob)
        assert reading.value == ABSENT_CLSACT
        assert change(executor, target, knob, value).applied == value
    restored(host, tmp_path, before)


def test_the_agents_hooks_stay_while_they_have_foreign_filters(
    host: Host, programs: Programs, tmp_path: Path
) -> None:
    executor = link_executor(tmp_path, programs)
    change(executor, uplink(host), Knob.TC_TREE, BOTH)
    tc(host, "filter", "add", "dev", "up0", "egress", *FOREIGN)
    assert link_executor(tmp_path).restore_all().clean
    left = "\n".join(dump(host))
    assert "pref 9 u32" in left and "clsact" in left
    assert "5357" not in left and "swp" not in left and "sweetpoint" not in left


def test_a_foreign_qdisc_stays(host: Host, programs: Programs, tmp_path: Path) -> None:
    tbf = ("rate", "100mbit", "burst", "64kb", "latency", "50ms")
    tc(host, "qdisc", "add", "dev", "up0", "root", "handle", "7:", "tbf", *tbf)
    before = dump(host)
    outcome = change(link_executor(tmp_path, programs), uplink(host), Knob.TC_TREE, BOTH)
    assert outcome.failure is Failure.REFUSED and outcome.errno == errno.EBUSY
    assert "tbf 7:" in outcome.message and "another program" in outcome.message
    assert outcome.applied == ABSENT
    assert dump(host) == before
    restored(host, tmp_path, before)


def test_foreign_filters_prevent_ingress_shaping(
    host: Host, programs: Programs, tmp_path: Path
) -> None:
    tc(host, "qdisc", "add", "dev", "up0", "clsact")
    tc(host, "filter", "add", "dev", "up0", "ingress", *FOREIGN)
    before = dump(host)
    executor = link_executor(tmp_path, programs)
    outcome = change(executor, uplink(host), Knob.TC_TREE, BOTH)
    assert outcome.errno == errno.EBUSY and "ingress: off" in outcome.message
    assert dump(host) == before
    executor = link_executor(tmp_path, programs)  # without the back-off
    assert change(executor, uplink(host), Knob.TC_TREE, EGRESS_ONLY).applied == EGRESS_ONLY
    assert change(executor, uplink(host), Knob.TC_CEILING, "5000000 0").applied == "5000000 0"
    wrong = change(executor, uplink(host), Knob.TC_CEILING, "5000000 7000000")
    assert wrong.errno == errno.EINVAL and wrong.applied == "5000000 0"
    restored(host, tmp_path, before)


def test_tcx_programs_prevent_ingress_shaping(
    host: Host, programs: Programs, tmp_path: Path
) -> None:
    link = uplink(host)
    libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
    foreign = libbpf.bpf_link_create(programs.learn, link.id, TCX_INGRESS, None)
    if foreign < 0:
        pytest.skip("this kernel has no tcx (Linux 6.6)")
    before = dump(host)
    outcome = change(link_executor(tmp_path, programs), link, Knob.TC_TREE, BOTH)
    assert outcome.errno == errno.EBUSY and "ingress: off" in outcome.message
    assert dump(host) == before
    os.close(foreign)
    assert change(link_executor(tmp_path, programs), link, Knob.TC_TREE, BOTH).applied == BOTH
    restored(host, tmp_path, before)


@pytest.mark.parametrize("obstacle", ["name taken", "bad program"])
def test_a_partly_made_tree_is_removed_after_a_refusal(
    host: Host, tmp_path: Path, obstacle: str, programs: Programs
) -> None:
    link = uplink(host)
    if obstacle == "name taken":
        host.ip(host.name, "link", "add", f"swp{link.id}", "type", "bridge")
    else:
        programs = programs._replace(egress=0)  # no program
    before = dump(host)
    outcome = change(link_executor(tmp_path, programs), link, Knob.TC_TREE, BOTH)
    assert outcome.failure is Failure.REFUSED, outcome
    assert dump(host) == before
    restored(host, tmp_path, before)


def test_without_programs_nothing_is_made(host: Host, tmp_path: Path) -> None:
    before = dump(host)
    outcome = change(link_executor(tmp_path), uplink(host), Knob.TC_TREE, BOTH)
    assert outcome.errno == errno.ENOSYS
    assert dump(host) == before


def test_a_damaged_tree_is_repaired_and_restored(
    host: Host, programs: Programs, tmp_path: Path
) -> None:
    before = dump(host)
    ifb = f"swp{uplink(host).id}"
    for damage in (
        ("tc", "qdisc", "del", "dev", "up0", "root"),
        ("tc", "qdisc", "del", "dev", "up0", "clsact"),
        ("tc", *CLASS, "rate", "1mbit", "ceil", "2mbit"),
        ("ip", "link", "set", ifb, "down"),
        ("ip", "link", "del", ifb),
    ):
        executor = link_executor(tmp_path, programs)
        change(executor, uplink(host), Knob.TC_TREE, BOTH)
        host.inside(host.name, *damage)
        (reading,) = (r for r in executor.read([uplink(host)]) if r.knob is Knob.TC_TREE)
        assert reading.value not in (BOTH, ABSENT)
        assert change(executor, uplink(host), Knob.TC_TREE, BOTH).applied == BOTH
        host.inside(host.name, *damage)
        restored(host, tmp_path, before)


def test_the_ifb_of_a_removed_link_is_removed(
    host: Host, programs: Programs, tmp_path: Path
) -> None:
    executor = link_executor(tmp_path, programs)
    link, pod = uplink(host), veth(host, "batch")
    change(executor, link, Knob.TC_TREE, BOTH)
    change(executor, link, Knob.TC_CEILING, "5000000 6000000")
    change(executor, pod, Knob.TC_MARK, CLASSIFIED)
    for device in ("up0", "veth-batch"):
        host.ip(host.name, "link", "del", device)
    report = link_executor(tmp_path).restore_all()
    assert {result.result for result in report.results} == {Restored.GONE}
    assert "swp" not in host.ip(host.name, "-br", "link")
    assert not list((tmp_path / "journal").iterdir())


def test_a_link_in_another_namespace_is_refused_with_a_command(
    host: Host, programs: Programs, tmp_path: Path
) -> None:
    change(link_executor(tmp_path, programs), uplink(host), Knob.TC_TREE, BOTH)
    shaped = dump(host)
    with entered(host.wire):
        (result,) = link_executor(tmp_path).restore_all().results
    assert result.result is Restored.FAILED
    assert f"nsenter --net=/run/netns/{host.name}" in result.message
    assert dump(host) == shaped


def test_the_ceiling_of_an_adopted_class(host: Host, tmp_path: Path) -> None:
    tc(host, "qdisc", "add", "dev", "up0", "root", "handle", "1:", "htb", "default", "10")
    rates = ("rate", "3333kbit", "ceil", "77777kbit", "burst", "7k", "cburst", "9k", "prio", "3")
    tc(host, "class", "add", "dev", "up0", "parent", "1:", "classid", "1:30", "htb", *rates)
    before = dump(host)
    executor = link_executor(tmp_path)
    adopted = uplink(host)._replace(path="up0/1:30")
    assert change(executor, adopted, Knob.TC_CEILING, "1000000 0").applied == "1000000 0"
    (was,), (now,) = ([ln for ln in d if "1:30" in ln] for d in (before, dump(host)))
    # The burst at the ceiling stays the same in time, so its bytes follow the ceiling.
    expected = was.replace("77777Kbit", "8Mbit").partition("cburst")[0]
    assert now.partition("cburst")[0] == expected
    restored(host, tmp_path, before)


def test_the_kernels_own_multiqueue_is_restored(
    host: Host, programs: Programs, tmp_path: Path
) -> None:
    host.ip(host.name, "link", "add", "many", "numtxqueues", "4", "type", "ifb")
    host.ip(host.name, "link", "set", "many", "up")
    before = dump(host)
    assert any("qdisc mq 0: dev many" in line for line in before)
    link = uplink(host, "many")
    executor = link_executor(tmp_path, programs)
    assert change(executor, link, Knob.TC_TREE, EGRESS_ONLY).applied == EGRESS_ONLY
    with Netlink() as netlink:
        assert [q.kind for q in netlink.qdiscs(link.id)] == ["htb"]
    restored(host, tmp_path, before)
