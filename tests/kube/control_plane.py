# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""etcd and kube-apiserver on the loopback, for one run of the tests.

No controller runs and no kubelet: the tests do what those would, so a test decides when.
"""

from collections.abc import Callable
import contextlib
import json
from pathlib import Path
import secrets
import shutil
import socket
import subprocess
import time
import urllib.request

from controller.demo.programs import Process, start
from tests.kube.client import Client, Json, Refused

__all__ = ("ControlPlane",)

_ISSUER = "https://kubernetes.default.svc"
# Three seconds of CPU time on an idle machine; a busy one gets as much as it needs.
_READY_WITHIN_S = 60.0
_TREE = Path(__file__).parents[2]


def _free_ports(count: int) -> list[int]:
    # All held at once: asked for one by one, two of them may be the same.
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _openssl(home: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)


def _make_certificates(home: Path) -> None:
    # An authority, the server's certificate by it, and the key that signs service accounts.
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    authority = ("-subj", "/CN=sweetpoint-test-ca", "-addext", "keyUsage=critical,keyCertSign")
    _openssl(home, "req", "-x509", *key, *authority, "-keyout", "ca.key", "-out", "ca.crt")
    server = (
        *("-subj", "/CN=kube-apiserver", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
        *("-addext", "extendedKeyUsage=serverAuth", "-CA", "ca.crt", "-CAkey", "ca.key"),
    )
    _openssl(home, "req", "-x509", *key, *server, "-keyout", "tls.key", "-out", "tls.crt")
    curve = ("-name", "prime256v1", "-genkey", "-noout")
    _openssl(home, "ecparam", *curve, "-out", "accounts.key")


class ControlPlane:
    """A running API server; ``admin`` may do everything.

    *home* keeps certificates, data and logs. ``stop_server`` and ``start_server`` take the API
    server away and bring it back at the same address with all that it knew.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port, self._etcd_port, self._peer_port = _free_ports(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca_file = home / "ca.crt"
        self._etcd: Process | None = None
        self._server: Process | None = None
        _make_certificates(home)
        token = secrets.token_hex()
        (home / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        self.admin = Client(self.url, self.ca_file, token)

    def __enter__(self) -> "ControlPlane":
        try:
            self._etcd = start("etcd", self._etcd_command(), self.home)
            self.start_server()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End both programs; the data goes, the logs stay."""
        self.stop_server()
        if self._etcd is not None:
            self._etcd.stop()
        shutil.rmtree(self.home / "etcd", ignore_errors=True)

    def start_server(self) -> None:
        """Start the API server and wait until it is ready.

        :raises DemoError: it or etcd ended, with the last words.
        """
        self._server = start("kube-apiserver", self._server_command(), self.home)
        self._wait(self._server, lambda: self.admin.get("/readyz"))

    def stop_server(self) -> None:
        """Kill the API server, as by a crash of its node: no watch is ended in good order."""
        if self._server is not None:
            self._server.popen.kill()
            self._server.popen.wait()
            self._server = None

    def compact(self) -> None:
        """Have etcd forget all that was, as the API server has it do every five minutes."""
        now = self._ask_etcd("range", {"key": "AA==", "count_only": True})["header"]["revision"]
        self._ask_etcd("compaction", {"revision": now, "physical": True})

    def _ask_etcd(self, what: str, body: Json) -> Json:
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/{what}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=10) as answer:
            return dict(json.load(answer))

    def client(self, token: str) -> Client:
        """Return a client with *token*."""
        return Client(self.url, self.ca_file, token)

    def _wait(self, process: Process, ask: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + _READY_WITHIN_S
        while True:
            process.check()
            if self._etcd is not None:
                self._etcd.check()
            try:
                ask()
            except (OSError, Refused) as error:
                assert time.monotonic() < deadline_s, f"{process.name}: {error}"
                time.sleep(0.05)
            else:
                return

    def _etcd_command(self) -> list[str]:
        peer = f"http://127.0.0.1:{self._peer_port}"
        client = f"http://127.0.0.1:{self._etcd_port}"
        return [
            *("etcd", "--name=test", "--data-dir=etcd", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            *(f"--initial-cluster=test={peer}", "--logger=zap", "--log-level=warn"),
        ]

    def _server_command(self) -> list[str]:
        built = subprocess.run(
            [_TREE / "tools" / "api-server", "path"], capture_output=True, check=True, text=True
        )
        return [
            *(built.stdout.strip(), f"--etcd-servers=http://127.0.0.1:{self._etcd_port}"),
            *("--bind-address=127.0.0.1", f"--secure-port={self.port}"),
            *("--tls-cert-file=tls.crt", "--tls-private-key-file=tls.key"),
            *("--authorization-mode=RBAC", "--token-auth-file=tokens.csv"),
            *(f"--service-account-issuer={_ISSUER}", "--service-account-key-file=accounts.key"),
            "--service-account-signing-key-file=accounts.key",
            # Nobody needs to find this server by a Service, and a loopback address cannot be one.
            *("--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24"),
            # The agent's own pod is privileged.
            "--allow-privileged=true",
        ]
