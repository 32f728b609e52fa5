# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A program under the real guardian, for test_guardian: squeezes one cgroup, then misbehaves.

Arguments: state directory, path of the cgroup, and what to do then: ``live``, ``die`` (exit code
3), ``wrong`` (exit code 2), ``done`` (exit code 0), ``deaf`` (ignore SIGTERM), ``slow`` (also
without a heartbeat, as during a long start), ``stuck`` (the restore after the agent's first death
hangs, and the next one is killed). Instead of squeezing the cgroup: ``steer`` writes random values
to it and its children until the end, refused or not, and ``nothing`` ends with exit code 0.
"""

import itertools
import logging
import os
from pathlib import Path
import random
import signal
import sys
import time
from typing import TYPE_CHECKING

from controller.agent import guardian
from controller.host.state_dir import Lock, LockError

if TYPE_CHECKING:
    from actuators.executor import Executor
    from controller.core.model import Target


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


def agent(heartbeat: guardian.Heartbeat, state_dir: Path, cgroup: Path, then: str) -> int:
    from controller.core.model import Knob
    from controller.host.facts import find_cgroup_layout
    from tests.kernel.knobs import action, executor, target_of

    if then == "nothing":
        return 0
    stop: list[int] = []
    if then in ("deaf", "slow"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))
    signal.signal(signal.SIGHUP, lambda _number, _frame: print("reload", flush=True))
    layout = find_cgroup_layout()
    target = target_of(layout, cgroup)
    knobs = executor(layout, state_dir)
    if then == "steer":
        steer(heartbeat, knobs, [target, *(target_of(layout, p) for p in cgroup.glob("*/"))], stop)
        return 0 if knobs.restore_all().clean else 1
    now = dict((reading.knob, reading.value) for reading in knobs.read([target]))
    values = {Knob.CPU_QUOTA: "5000 10000 0", Knob.SCHED_IDLE: "1"}
    outcomes = knobs.execute(
        [action(target, knob, now[knob], value) for knob, value in values.items()], now_ns=0
    )
    assert all(o.failure is None and o.foreign is None for o in outcomes), outcomes
    helper = os.fork()
    if helper == 0:  # a child of the agent: must have neither the lock nor the heartbeat open
        fds = " ".join(sorted(os.listdir("/proc/self/fd"), key=int)[:-1])
        print(f"helper {fds}", flush=True)
        os._exit(0)
    os.waitpid(helper, 0)
    print(f"squeezed {os.getpid()}", flush=True)
    if then in ("die", "wrong", "done"):
        return {"die": 3, "wrong": 2, "done": 0}[then]
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
            time.sleep(60)
        if count == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return restore_knobs(state_dir)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    state_dir, cgroup, then = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    try:
        lock = Lock(state_dir)
    except LockError as error:
        print(error, file=sys.stderr)
        return 1
    return guardian.run(
        lambda heartbeat: agent(heartbeat, state_dir, cgroup, then),
        lock=lock,
        restore=lambda: restore(state_dir, then),
        limits=guardian.Limits(
            heartbeat_s=1.0,
            stop_s=1.0,
            restore_s=2.0 if then == "stuck" else 30.0,
            restores=3,
            quick_deaths=3,
            backoff_s=0.2,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
