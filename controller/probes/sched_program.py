# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The load specification of ``bpf/sched.bpf.c`` for the running kernel, and its map layouts."""

from collections.abc import Mapping
import contextlib

import numpy as np

from controller.core.indicators.measurement import BUCKETS
from controller.probes.bpf.btf import Btf, BtfError, ancestor_offsets
from controller.probes.bpf.loader import ProgramSpec
from controller.probes.counters import counter_maps
from controller.probes.perf import EventSource

__all__ = (
    "ACCOUNT",
    "ACCOUNT_WORDS",
    "CPU",
    "GENERATION",
    "LATENCY",
    "LATENCY_WORDS",
    "sched_spec",
    "without_sched_info",
)

# Cgroups without a slot count as unknown as long as they are in the map: 64 bytes for each.
_CGROUPS_PER_SLOT = 8
LATENCY_WORDS = BUCKETS + 14
ACCOUNT_WORDS = 8
# Signed, because differences are computed from it.
ACCOUNT = np.dtype([("word", "i8", ACCOUNT_WORDS)])
LATENCY = np.dtype([("bucket", "u4", LATENCY_WORDS)])
# Each word has one writer: the program, and user space.
GENERATION = np.dtype([("cgroups", "u8"), ("updates", "u8")])
CPU = np.dtype(
    {
        "names": [
            "since",
            "slot",
            "sync_clock",
            "sync_mono",
            "switches",
            "shed",
            "running",
            "missed",
            "stolen",
        ],
        "formats": ["u8"] * 9,
        "offsets": [0, 8, 16, 24, 32, 96, 104, 112, 120],
        "itemsize": 16 * 8 + 16 * 24 + 64 * 16,
    }
)


def without_sched_info(btf: Btf) -> str:
    """Return why waits are timed with wakeup stamps (``bpf/include/stamps.h``), else nothing.

    The reason is a kernel without sched_info (neither CONFIG_SCHEDSTATS nor
    CONFIG_TASK_DELAY_ACCT).
    """
    try:
        btf.offset("task_struct", "sched_info.last_queued")
    except BtfError as error:
        return f"wakeup stamps, because {error}"
    return ""


def sched_spec(
    btf: Btf,
    *,
    cpus: int,
    max_slots: int,
    max_latency: int,
    blame: bool,
    counters: Mapping[str, EventSource] | None = None,
    wake: bool = True,
) -> ProgramSpec:
    """Return what to load on a machine with *cpus* possible CPUs.

    :param wake: tell user space of long waits, which takes a ring buffer (Linux 5.8).
    :raises BtfError: the kernel lacks a struct member that the probe reads; the message names it.
    """
    stamps = bool(without_sched_info(btf))
    defines = {
        "NCPU": cpus,
        "MAX_SLOTS": max_slots,
        "MAX_CGROUPS": _CGROUPS_PER_SLOT * max_slots,
        "MAX_LATENCY": max_latency,
        "BLAME": int(blame),
        "COUNTERS": len(counters or {}),
        "STAMPS": int(stamps),
        "WAKE": int(wake),
        "OFF_TASK_GROUP": btf.offset("task_struct", "sched_task_group"),
        "OFF_TASK_SUM_EXEC": btf.offset("task_struct", "se.sum_exec_runtime"),
        "OFF_TASK_PREV_SUM_EXEC": btf.offset("task_struct", "se.prev_sum_exec_runtime"),
        "OFF_TASK_CFS_RQ": btf.offset("task_struct", "se.cfs_rq"),
        "OFF_CFS_RQ_RQ": btf.offset("cfs_rq", "rq"),
        # Since Linux kernel commit 677ea015f231 ("sched: add throttled time stat for throttled
        # children") (in v6.6), in time of the run queue's clock; before, of the PELT clock.
        "OFF_CFS_RQ_THROTTLED": btf.first_offset(
            "cfs_rq",
            "throttled_clock_self_time",
            "throttled_clock_pelt_time",
            "throttled_clock_task_time",
        ),
        "OFF_RQ_CLOCK": btf.offset("rq", "clock"),
        "OFF_HRTIMER_EXPIRES": btf.offset("hrtimer", "node.expires"),
        "OFF_HRTIMER_IS_SOFT": btf.offset("hrtimer", "is_soft"),
        "OFF_RQ_IDLE": btf.offset("rq", "idle"),
        "OFF_CSS_CGROUP": btf.offset("cgroup_subsys_state", "cgroup"),
        **ancestor_offsets(btf),
    }
    with contextlib.suppress(BtfError):  # a kernel without CONFIG_PARAVIRT_TIME_ACCOUNTING
        defines["OFF_RQ_STOLEN"] = btf.offset("rq", "prev_steal_time_rq")
    if stamps:
        defines["OFF_TASK_STATE"] = btf.first_offset("task_struct", "__state", "state")
    else:
        defines["OFF_TASK_LAST_QUEUED"] = btf.offset("task_struct", "sched_info.last_queued")
    return ProgramSpec(
        source="sched.bpf.c",
        defines=defines,
        maps=(
            "cpus",
            "accounts",
            "latencies",
            "blame",
            "slot_of_cgroup",
            "generation",
            "cgroup_changes",
            "slow_path",
            "stalls",
            *(("limits", "alarm", "wakes") if wake else ()),
            *counter_maps(counters or {}),
        ),
        tracepoint="sched_switch",
        runnable=("count_running",) if counters else (),
        tail_calls={"slow_path": ("long_wait",)},
        # The key of a stamp is the task's address, and the verifier takes no typed pointer for it.
        typed=not stamps,
    )
