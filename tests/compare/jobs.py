# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The best-effort jobs of the comparison; the kernel accounts for all of them correctly.

Each has at least two busy threads for each CPU and reports its work itself. Jobs that switch all
the time are not among them: the kernel charges those only when they end.
"""

from collections.abc import Mapping
from functools import partial
import json
import os
from pathlib import Path
import re
import signal
import sys

from controller.demo.programs import BestEffort
from tests.compare.link import SINK

__all__ = ("JOBS",)

_WORKERS = 2 * (os.cpu_count() or 1)
_REPEAT = Path(__file__).with_name("repeat.py")
_MATERIAL_BYTES = 400_000
# A tenth of a second for a compiler, so that the files of a block are many.
_FUNCTIONS = 40


def _ffmpeg(output: Path) -> list[str]:
    command = ["ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "error", "-y"]
    command += ["-f", "lavfi", "-i", "testsrc2=size=640x360:rate=30", "-c:v", "libx264"]
    command += ["-preset", "medium", "-threads", str(_WORKERS), "-stats_period", "0.1"]
    return [*command, "-progress", f"file:{output}", "-f", "null", "-"]


def _frames(output: str) -> float | None:
    frames = re.findall(r"^frame=\s*(\d+)$", output, re.MULTILINE)
    return float(frames[-1]) if frames else None


def _stress(stressor: str, output: Path) -> list[str]:
    command = ["stress-ng", f"--{stressor}", str(_WORKERS), "--metrics", "--yaml", str(output)]
    return [*command, "--vm-bytes", "64M"] if stressor == "vm" else command


def _bogo_ops(stressor: str, output: str) -> float | None:
    found = re.search(rf"stressor: {stressor}\n\s+bogo-ops: (\d+)", output)
    return float(found[1]) if found else None


def _repeated(command: list[str], output: Path) -> list[str]:
    return [sys.executable, "-S", str(_REPEAT), str(output), str(_WORKERS), *command]


def _runs(output: str) -> float | None:
    return float(output) if output else None


def _xz(output: Path) -> list[str]:
    material = output.with_name("material")
    if not material.exists():
        # Text of few words compresses like a log.
        words = [os.urandom(4).hex() for _ in range(200)]
        text = " ".join(words[byte % 200] for byte in os.urandom(_MATERIAL_BYTES // 9))
        material.write_text(text)
    return _repeated(["xz", "-6", "-T1", "-k", "-c", str(material)], output)


def _compiler(output: Path) -> list[str]:
    source = output.with_name("source.c")
    source.write_text(
        "\n".join(
            f"int f{n}(int a, int b) {{ int s = {n}; for (int i = 0; i < a; i++) s += i * b ^ {n};"
            " return s; }"
            for n in range(_FUNCTIONS)
        )
    )
    return _repeated(["gcc", "-O2", "-S", "-o", "/dev/null", str(source)], output)


def _upload(output: Path) -> list[str]:
    # Cubic is the kernel's default; a machine may have another one.
    command = ["iperf3", "-c", SINK, "-t", "3600", "-P", "4", "-C", "cubic"]
    return [*command, "-J", "--logfile", str(output)]


def _megabytes(output: str) -> float | None:
    return json.loads(output)["end"]["sum_sent"]["bytes"] / 1e6 if output else None


JOBS: Mapping[str, BestEffort] = {
    each.name: each
    for each in (
        BestEffort(
            name="ffmpeg",
            unit="frames",
            command=_ffmpeg,
            work=_frames,
            stop_by=signal.SIGTERM,
        ),
        BestEffort(
            name="upload", unit="MB", command=_upload, work=_megabytes, stop_by=signal.SIGINT
        ),
        BestEffort(name="xz", unit="files", command=_xz, work=_runs, stop_by=signal.SIGTERM),
        BestEffort(
            name="compiler", unit="files", command=_compiler, work=_runs, stop_by=signal.SIGTERM
        ),
        *(
            BestEffort(
                name=name,
                unit="ops",
                command=partial(_stress, name),
                work=partial(_bogo_ops, name),
                stop_by=signal.SIGINT,
            )
            for name in ("cpu", "matrix", "stream", "vm")
        ),
    )
}
