# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A program under the real guardian, for ``guarded_run``: squeezes one cgroup, then misbehaves.

Arguments: state directory, path of the cgroup, what each agent does then, and limits of the
guardian as ``name=seconds``. An agent waits for a line of standard input before it squeezes.

Then: ``live``, ``deaf`` (ignore SIGTERM), ``slow`` (also without a heartbeat, as during a long
start), ``silent`` (one heartbeat, then SIGSTOP to itself), ``frozen:PATH`` (the same, but in the
freezer cgroup PATH), ``busy:PATH`` (one heartbeat, then a loop in the cgroup PATH), ``stuck`` (the
restore after the agent's first death hangs, and the next one is killed), ``hungry`` (take memory
until killed). Without waiting: ``die`` (exit code 3), ``wrong`` (exit code 2), ``done`` (exit code
0), and ``nothing``, which does not squeeze. ``steer`` writes random values to the cgroup and its
children until the end, refused or not.
"""

import importlib
import itertools
import logging
import os
from pathlib import Path
import random
import select
import signal
import sys
import time
from typing import TYPE_CHECKING

from controller.agent import guardian
from controller.host.oom import find_memory_cgroup
from controller.host.state_dir import Lock, LockError
from tests.support.waiting import DEADLINE_S

if TYPE_CHECKING:
    from actuators.executor import Executor
    from controller.core.model import Target

_EXIT_CODES = {"die": 3, "wrong": 2, "done": 0}
# Only a hang reaches it: a starved agent must not look like a silent one.
_HANG_S = DEADLINE_S


def may_squeeze(stop: list[int]) -> bool:
    """Wait for a line of standard input; False: asked to stop instead, or the test is over."""
    while not stop:
        if select.select([0], [], [], 0.05)[0]:
            return os.read(0, len("go\n")) == b"go\n"
    return False


def steer(
    heartbeat: guardian.Heartbeat, knobs: "Executor", targets: "list[Target]", stop: list[int]
) -> None:
    from controller.core.model import Knob
    from tests.kernel.knobs import action

    wishes = {
        Knob.CPU_QUOTA: ("5000 10000 0", "9000 10000 2000", "40000 100000 40000"),
        Knob.SCHED_IDLE: ("1", "0 100"),
    }
    for tick in itertools.count():
        actions = []
        for target, knob, value, original in knobs.read(targets, wishes):
            wish = random.choice((*wishes[knob], original or value))
            actions.append(action(target, knob, value, wish))
        knobs.execute(actions, now_ns=tick * 10**11)
        if tick == 0:
            print(f"squeezed {os.getpid()}", flush=True)
        heartbeat.beat()
        if stop:
            return


def squeeze(knobs: "Executor", target: "Target") -> None:
    from controller.core.model import Knob
    from tests.kernel.knobs import action

    now = dict((reading.knob, reading.value) for reading in knobs.read([target]))
    values = {Knob.CPU_QUOTA: "5000 10000 0", Knob.SCHED_IDLE: "1"}
    outcomes = knobs.execute(
        [action(target, knob, now[knob], value) for knob, value in values.items()], now_ns=0
    )
    assert all(o.failure is None and o.foreign is None for o in outcomes), outcomes


def print_fds_of_a_child() -> None:
    """Print the descriptors of a child of the agent, which has neither lock nor heartbeat open."""
    child = os.fork()
    if child == 0:
        fds = " ".join(sorted(os.listdir("/proc/self/fd"), key=int)[:-1])
        print(f"helper {fds}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def fall_silent(heartbeat: guardian.Heartbeat, how: str, cgroup: str) -> None:
    """Send one heartbeat and do nothing more, also not what a signal asks for."""
    if cgroup:
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    heartbeat.beat()
    if how == "frozen":
        Path(cgroup, "freezer.state").write_text("FROZEN")  # on v1 not even SIGKILL ends it
    elif how == "silent":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:  # "busy"
        pass


def agent(heartbeat: guardian.Heartbeat, state_dir: Path, cgroup: Path, then: str) -> int:
    from controller.host.facts import find_cgroup_layout
    from tests.kernel.knobs import executor, target_of

    if then == "nothing":
        return 0
    stop: list[int] = []
    hoard: list[bytes] = []
    if then in ("deaf", "slow"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))
    signal.signal(signal.SIGHUP, lambda _number, _frame: print("reload", flush=True))
    layout = find_cgroup_layout()
    target = target_of(layout, cgroup)
    knobs = executor(layout, state_dir)
    if then not in _EXIT_CODES and not may_squeeze(stop):
        return 0
    if then == "steer":
        steer(heartbeat, knobs, [target, *(target_of(layout, p) for p in cgroup.glob("*/"))], stop)
        return 0 if knobs.restore_all().clean else 1
    squeeze(knobs, target)
    if then == "hungry":
        print(f"squeezed {os.getpid()}", flush=True)
        while True:
            hoard.append(bytes(1 << 20))
    print_fds_of_a_child()
    how, _, within = then.partition(":")
    is_silent = how in ("silent", "frozen", "busy")
    if not is_silent and then != "slow":
        heartbeat.beat()  # before the test knows: for the guardian the start is over
    print(f"squeezed {os.getpid()}", flush=True)
    if then in _EXIT_CODES:
        return _EXIT_CODES[then]
    if is_silent:
        fall_silent(heartbeat, how, within)
    while not stop:
        if then != "slow":
            heartbeat.beat()
        time.sleep(0.05)
    return 0 if knobs.restore_all().clean else 1


def restore(state_dir: Path, then: str) -> bool:
    from controller.agent.restore import restore_knobs

    if then == "stuck":
        count = len(list(state_dir.glob("restore-*")))
        (state_dir / f"restore-{count}").touch()
        if count == 1:  # the first one is that at the start
            time.sleep(_HANG_S)
        if count == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return restore_knobs(state_dir)


def limits(given: list[str]) -> guardian.Limits:
    """Return the limits that the test asks for; the others are those of a hang."""
    hangs = dict.fromkeys(("heartbeat_s", "start_s", "stop_s", "restore_s"), _HANG_S)
    named = {name: float(seconds) for name, _, seconds in (each.partition("=") for each in given)}
    # More restores than ``stuck`` needs: one without a CPU may reach a short limit, too.
    few = guardian.Limits(restores=8, quick_deaths=3, backoff_s=0.2)
    return guardian.Limits(**few._asdict() | hangs | named)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    state_dir, cgroup, then = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    try:
        lock = Lock(state_dir)
    except LockError as error:
        print(error, file=sys.stderr)
        return 1
    if then == "stuck":
        # In the guardian, so that a restore takes milliseconds of its limit, also where CPUs are
        # scarce. Otherwise not, because the guardian stays small.
        importlib.import_module("controller.agent.restore")
    return guardian.run(
        lambda heartbeat: agent(heartbeat, state_dir, cgroup, then),
        lock=lock,
        restore=lambda: restore(state_dir, then),
        limits=limits(sys.argv[4:]),
        memory=find_memory_cgroup(os.getpid()),
    )


if __name__ == "__main__":
    sys.exit(main())
