# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Phases of a demonstration that did not run."""

from collections.abc import Sequence

from controller.demo.results import LoadSecond, Phase, Sample, Work

__all__ = ("load", "phase")


def load(start_s: float, *latency_ms: float) -> LoadSecond:
    return LoadSecond(
        start_s=start_s,
        latency_us=tuple(round(ms * 1000) for ms in latency_ms),
        late_us=(10,) * len(latency_ms),
        queued=0,
        errors=0,
        timeouts=0,
        generator_cpu_ns=0,
    )


def phase(
    key: str,
    *,
    runq_ms: Sequence[float | None],
    latency_ms: float = 1.0,
    work: float | None = None,
    against: str | None = None,
) -> Phase:
    """Return a phase with one sample in the middle and one request in each second."""
    return Phase(
        key=key,
        title=key,
        mode="enforce" if against else "observe",
        seconds=float(len(runq_ms)),
        against=against,
        load=tuple(load(float(second), latency_ms) for second in range(len(runq_ms))),
        samples=tuple(
            Sample(
                time_s=second + 0.5,
                runq_p99_ms=value,
                sweet_point_ms=2.0,
                be_oncpu_s=second * 1.5,
            )
            for second, value in enumerate(runq_ms)
        ),
        work=None
        if work is None
        else Work(job="job", unit="frames", amount=work, seconds=float(len(runq_ms))),
    )
