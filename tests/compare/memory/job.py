# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The job beside the service: three pods that are started again when they die."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
import contextlib
from pathlib import Path
import signal
import sys
import threading
import time

from controller.demo.programs import Process, start
from tests.compare.memory.node import MemoryNode

__all__ = ("HOG", "READER", "RESTART_S", "Job")

# Kinds of ``worker``.
HOG, READER = "hog", "reader"

_WORKER = Path(__file__).with_name("worker.py")
_POLL_S = 0.02
# kubelet starts a container again at once, then after ten seconds; a block would see one restart.
RESTART_S = 2.0
_SCORE = 1000  # that kubelet gives to BestEffort pods


class Job:
    """Pods of *kind*, a kind of ``worker``, in the cgroups *pods*; *file* is what a reader reads.

    ``deaths`` counts those that something else ended, ``evictions`` those that ``evict`` ended.
    """

    def __init__(
        self, node: MemoryNode, home: Path, kind: str, seed: str, pods: Sequence[str], file: Path
    ) -> None:
        self._node, self._home, self._kind, self._seed = node, home, kind, seed
        self._file = file
        self.pods = tuple(pods)
        self.deaths = self.evictions = 0
        self._lock = threading.Lock()
        self._running: dict[str, Process] = {}
        self._accounts: list[Path] = []
        self._due_s = dict.fromkeys(pods, 0.0)
        self._closed: set[str] = set()
        self._stop = threading.Event()
        self._keeper = ThreadPoolExecutor(1)
        self._kept: Future[None] | None = None

    def begin(self) -> None:
        """Start the pods, and keep them running."""
        self._kept = self._keeper.submit(self._keep)

    def end(self) -> None:
        """End the pods.

        :raises Exception: they were not kept running, so the block had too little load.
        """
        self._stop.set()
        self._keeper.shutdown()
        for process in self._running.values():
            process.stop(signal.SIGKILL)
        if self._kept is not None:
            self._kept.result()

    @property
    def living(self) -> list[str]:
        """The pods that run."""
        with self._lock:
            return [pod for pod, each in self._running.items() if each.popen.poll() is None]

    def evict(self, pod: str, *, for_good: bool) -> None:
        """Kill *pod*; *for_good*: the node does not take it again."""
        with self._lock:
            process = self._running.get(pod)
            if process is None or process.popen.poll() is not None:
                return
            process.stop(signal.SIGKILL)
            del self._running[pod]
            self.evictions += 1
            self._due_s[pod] = time.monotonic() + RESTART_S
        if for_good:
            self._closed.add(pod)

    def work_mib(self) -> int:
        """Return the MiB of all complete pieces so far."""
        done = 0
        for account in list(self._accounts):
            with contextlib.suppress(FileNotFoundError):
                done += int(account.read_text() or 0)
        return done

    def _keep(self) -> None:
        while not self._stop.wait(_POLL_S):
            now_s = time.monotonic()
            with self._lock:
                for pod in self.pods:
                    self._keep_pod(pod, now_s)

    def _keep_pod(self, pod: str, now_s: float) -> None:
        process = self._running.get(pod)
        if process is not None:
            if process.popen.poll() is None:
                return
            del self._running[pod]
            self.deaths += 1
            self._due_s[pod] = now_s + RESTART_S
        if pod not in self._closed and now_s >= self._due_s[pod]:
            self._running[pod] = self._start(pod)

    def _start(self, pod: str) -> Process:
        number = len(self._accounts)
        account = self._home / f"account-{number}"
        self._accounts.append(account)
        account.unlink(missing_ok=True)
        seed = f"{self._seed} {pod} {number}"
        command = [sys.executable, "-S", str(_WORKER), str(account), self._kind, seed]
        join = self._node.join(pod, _SCORE)
        return start("worker", [*command, str(self._file)], self._home, join=join)
