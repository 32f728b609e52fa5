# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The doorbell: a plugin of the container runtime that says when a container is about to run.

The runtime (containerd, CRI-O) calls its NRI plugins and waits for their answers, while the cgroup
of the container exists and its program does not run yet. The doorbell wakes the control thread,
which makes a tick, and answers when that tick is over. So a new best-effort container has its knobs
before its first instruction. The runtime also says what pods there are, while the API server is
away too.

The answer is always empty. An adjustment in it would become a part of the specification that the
runtime keeps, and the runtime would write it again after this agent has ended. So the executor
writes, with the journal. The doorbell decides nothing, and no container waits for it longer than
``answer_within_s``. Where ticks are late three times in a minute, it answers at once for a minute.
Before the first tick it answers at once as well: it connects while the agent still starts.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
import contextlib
from dataclasses import dataclass
from itertools import accumulate
import logging
from random import Random
import socket
import threading
import time

from controller.kube.client.rate_limit import Backoff
from controller.nri.frames import (
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    FrameError,
    Message,
    Trunk,
    encode,
)
from controller.nri.messages import (
    MessageError,
    PodList,
    configured,
    decode_request,
    decode_status,
    encode_response,
    is_arrival,
    pod_that_came,
    pod_that_went,
    register,
    synchronized,
)
from controller.workloads.pods.pod import RuntimePod

__all__ = ("Doorbell", "DoorbellState")

_log = logging.getLogger(__name__)

_NAME = "sweetpoint"
# Plugins are called in the order of two digits; the last one sees what all others adjusted.
_INDEX = "99"
_RECEIVE_BYTES = 1 << 16
_MOST_LATE = 3
_IMPATIENT_S = 60.0
# Of a runtime that refuses the plugin, or that says what it does not understand.
_LONGEST_BACKOFF_S = 60.0
# While nobody listens, which is a restart of the runtime. A look at a socket of this host is cheap.
_ABSENT_S = 1.0
# A runtime that tells no removals must not fill the memory; kubelet runs 110 pods by default. Nor
# must pods that ended, whose owner wrote the texts: the oldest are dropped. A character takes 1 to
# 4 bytes.
_MOST_PODS, _MOST_CHARS = 4096, 2 << 20


@dataclass(frozen=True, slots=True)
class DoorbellState:
    """State of a doorbell at the socket ``path``.

    ``problem`` says why the runtime does not know the plugin; empty: it does. ``in_time`` and
    ``late`` count the answers after a tick, and those before one.
    """

    path: str
    problem: str
    in_time: int
    late: int


def _chars(pod: RuntimePod) -> int:
    texts = (pod.labels, pod.annotations)
    return sum(len(key) + len(value) for each in texts for key, value in each.items())


class Doorbell:
    """The plugin, in a thread of its own. ``begin`` and ``end`` are for the control thread.

    ``pods``: the pods with containers, by UID, as the runtime reported them; never changed in
    place. ``arrived``: the UIDs of those with a container that came before the last ``begin``.

    :param path: the socket of the runtime
    :param answer_within_s: the longest wait for a tick, in seconds
    :param wake: makes the control thread begin a tick soon
    """

    def __init__(self, path: str, answer_within_s: float, wake: Callable[[], None]) -> None:
        self._path = path
        self._answer_within_s = answer_within_s
        self._wake = wake
        self._condition = threading.Condition()
        # Rings so far, those that a tick has begun for, and those whose tick is over.
        self._rung = self._begun = self._ended = 0
        self._ticks_run = False
        self._late_s: deque[float] = deque(maxlen=_MOST_LATE)
        self._closing = threading.Event()
        self._socket: socket.socket | None = None
        self._problem = "not connected yet"
        self._in_time = self._late = 0
        self.pods: Mapping[str, RuntimePod] = {}
        self.arrived: frozenset[str] = frozenset()
        self._arriving: set[str] = set()
        self._listed = PodList()
        self._thread = threading.Thread(target=self._run, name="nri", daemon=True)
        self._thread.start()

    @property
    def state(self) -> DoorbellState:
        """What happened so far."""
        return DoorbellState(self._path, self._problem, self._in_time, self._late)

    @property
    def waits(self) -> bool:
        """Whether a container came since the last tick began."""
        return self._rung != self._begun

    def begin(self) -> bool:
        """Note that a tick begins; return whether a container came since the last one did."""
        with self._condition:
            self._ticks_run = True
            before, self._begun = self._begun, self._rung
            self.arrived = frozenset(self._arriving)
            self._arriving.clear()
        return self._begun != before

    def end(self) -> None:
        """Let the containers start that waited for the tick that is over."""
        if self._ended != self._begun:
            with self._condition:
                self._ended = self._begun
                self._condition.notify_all()

    def close(self) -> None:
        """End the thread; containers do not wait any more."""
        self._closing.set()
        with self._condition:
            self._condition.notify_all()
        if (connection := self._socket) is not None:
            with contextlib.suppress(OSError):  # the runtime ended first
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        backoff = Backoff(Random(), longest_s=_LONGEST_BACKOFF_S)  # noqa: S311 - jitter
        while not self._closing.is_set():
            try:
                self._connect(backoff)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                self._lose(str(error))
                self._closing.wait(_ABSENT_S)
            except (OSError, FrameError, MessageError) as error:
                self._lose(str(error))
                self._closing.wait(backoff.next_s())

    def _lose(self, problem: str) -> None:
        if not self._closing.is_set() and problem != self._problem:
            _log.warning("%s: %s: new containers are found by scans only", self._path, problem)
        self._problem = problem

    def _connect(self, backoff: Backoff) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            self._socket = connection
            if self._closing.is_set():
                return
            connection.connect(self._path)
            self._listed = PodList()
            connection.sendall(encode(Message(RUNTIME, 1, REQUEST, register(_NAME, _INDEX))))
            trunk = Trunk()
            while data := connection.recv(_RECEIVE_BYTES):
                for message in trunk.feed(data):
                    if message.connection == RUNTIME:
                        self._take_registration(message)
                    else:
                        connection.sendall(encode(self._answer(message, backoff)))
            raise ConnectionResetError("the runtime closed the connection")

    def _take_registration(self, message: Message) -> None:
        problem = decode_status(message.body)
        if problem:
            raise MessageError(f"the runtime refused the plugin: {problem}")
        self._problem = ""
        _log.info("%s: the runtime tells new containers before they run", self._path)

    def _answer(self, message: Message, backoff: Backoff) -> Message:
        if message.kind != REQUEST:
            raise FrameError(f"a message of kind {message.kind}")
        request = decode_request(message.body)
        payload = b""
        if request.method == "Configure":
            payload = configured()
        elif request.method == "Synchronize":
            payload = synchronized(request.payload)
            self._listed.add(request.payload)
            if not payload:  # the last message of the list
                # All of them: others may have gone while the runtime could not tell.
                self._keep({}, self._listed.found())
                self._listed = PodList()
                backoff.reset()
        elif is_arrival(request):
            pod = pod_that_came(request)
            self._keep(self.pods, filter(None, [pod]))
            self._ring(pod)
        elif (gone := pod_that_went(request)) is not None:
            # An old sandbox of a pod goes while the pod runs in another one.
            self.pods = {uid: pod for uid, pod in self.pods.items() if (uid, pod.sandbox) != gone}
        return Message(PLUGIN, message.stream, RESPONSE, encode_response(payload))

    def _keep(self, known: Mapping[str, RuntimePod], pods: Iterable[RuntimePod]) -> None:
        kept = {**known, **{pod.uid: pod.with_earlier(known.get(pod.uid)) for pod in pods}}
        sizes = accumulate(_chars(pod) for pod in reversed(kept.values()))
        fit = sum(size <= _MOST_CHARS for size in sizes)
        self.pods = dict(list(kept.items())[-min(_MOST_PODS, max(1, fit)) :])

    def _ring(self, pod: RuntimePod | None) -> None:
        """Wake the control thread and wait for its tick; *pod* is that of a container."""
        patient = self._is_patient
        with self._condition:
            if pod is not None:
                self._arriving.add(pod.uid)
            self._rung += 1
            number = self._rung
            self._wake()
            in_time = patient and self._condition.wait_for(
                lambda: self._ended >= number or self._closing.is_set(), self._answer_within_s
            )
        if in_time:
            self._in_time += 1
            return
        if not self._ticks_run:
            return  # nothing is late at the start
        self._late += 1
        if patient:
            self._late_s.append(time.monotonic())

    @property
    def _is_patient(self) -> bool:
        """Whether the runtime waits: from the first tick on, not while ticks are late."""
        if not self._ticks_run:
            return False
        late_s = self._late_s
        often = len(late_s) == _MOST_LATE and late_s[-1] - late_s[0] < _IMPATIENT_S
        return not often or time.monotonic() - late_s[-1] > _IMPATIENT_S
