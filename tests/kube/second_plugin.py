# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A second NRI plugin on a real node, which gives containers a weight and a quota by its answer."""

from collections.abc import Iterator
import contextlib
import socket
import threading
from typing import NamedTuple

from controller.nri.frames import PLUGIN, REQUEST, RESPONSE, RUNTIME, Message, Trunk, encode
from controller.nri.messages import decode_request, decode_status, encode_response, register
from tests.kube.real_node import RealNode
from tests.support.nri import PROTO
from tests.support.waiting import eventually

__all__ = ("PERIOD_US", "Limits", "SecondPlugin", "second_plugin")

PERIOD_US = 100_000
_CREATE_CONTAINER = 1 << 3
_SOCKET = "/run/nri/nri.sock"


class Limits(NamedTuple):
    """What a container gets: ``cpu.shares``, and the quota of each ``PERIOD_US``."""

    shares: int
    quota_us: int


class SecondPlugin:
    """The plugin; ``created`` counts the containers that it was asked about, by pod.

    :param limits: what the container of a pod with one of these labels ``plugin`` gets.
    """

    def __init__(self, node: RealNode, index: str, limits: dict[str, Limits]) -> None:
        self.created: dict[str, int] = {}
        self.registered = False
        self._index, self._limits = index, limits
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(node.host.file(_SOCKET)))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Register the plugin and wait until the runtime knows it."""
        body = register("second", self._index)
        self._socket.sendall(encode(Message(RUNTIME, 1, REQUEST, body)))
        self._thread.start()
        eventually("the second plugin", lambda: self.registered)

    def close(self) -> None:
        """End it; the runtime goes on without it."""
        with contextlib.suppress(OSError):  # the runtime ended first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        trunk = Trunk()
        while data := self._socket.recv(1 << 16):
            for message in trunk.feed(data):
                if message.connection == RUNTIME:
                    assert not decode_status(message.body)
                    continue
                body = encode_response(self._answer(message.body))
                self._socket.sendall(encode(Message(PLUGIN, message.stream, RESPONSE, body)))

    def _answer(self, body: bytes) -> bytes:
        request = decode_request(body)
        if request.method == "Configure":
            return _bytes("Configured", events=_CREATE_CONTAINER)
        if request.method == "Synchronize":
            self.registered = True
        if request.method != "CreateContainer":
            return b""
        pod = PROTO["Told"].FromString(request.payload).pod
        labels = {each.key: each.value for each in pod.labels}
        self.created[pod.name] = self.created.get(pod.name, 0) + 1
        limits = self._limits.get(labels.get("plugin", ""))
        return b"" if limits is None else _adjustment(limits)


def _adjustment(limits: Limits) -> bytes:
    numbers = {"shares": limits.shares, "quota": limits.quota_us, "period": PERIOD_US}
    cpu = PROTO["Cpu"](**{name: PROTO["Number"](value=each) for name, each in numbers.items()})
    linux = PROTO["AdjustedLinux"](resources=PROTO["Resources"](cpu=cpu))
    return _bytes("Created", adjust=PROTO["Adjustment"](linux=linux))


def _bytes(name: str, **fields: object) -> bytes:
    body: bytes = PROTO[name](**fields).SerializeToString()
    return body


@contextlib.contextmanager
def second_plugin(node: RealNode, index: str, limits: dict[str, Limits]) -> Iterator[SecondPlugin]:
    """Have the plugin for a block of code."""
    plugin = SecondPlugin(node, index, limits)
    try:
        plugin.start()
        yield plugin
    finally:
        plugin.close()
