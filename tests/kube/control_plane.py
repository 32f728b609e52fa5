# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""etcd and kube-apiserver on the loopback, for one run of the tests.

Controllers run only if a test starts them; otherwise the tests do their work, and choose the time.
"""

from collections import Counter
from collections.abc import Callable, Sequence
import json
from pathlib import Path
import secrets
import shutil
import subprocess
import urllib.request

from controller.demo.programs import Process, free_port, start
from tests.kube.asking import answer
from tests.kube.client import Client, Json
from tests.support.temporary import Temporary
from tests.support.waiting import DEADLINE_S

__all__ = ("SERVICE_IP", "ControlPlane", "program")

# The address of the Service ``kubernetes``, the first of the range: what pods are told.
SERVICE_IP = "10.0.0.1"
_ISSUER = "https://kubernetes.default.svc"
_TREE = Path(__file__).parents[2]


def program(name: str) -> Path:
    """Return the path of one of the programs that ``tools/real-node`` built."""
    built = subprocess.run(
        [_TREE / "tools" / "real-node", "path"], capture_output=True, check=True, text=True
    )
    return Path(built.stdout.strip()) / name


def _openssl(home: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=home, check=True, capture_output=True)


def _make_certificates(home: Path) -> None:
    # A certificate authority, the server's certificate, and the key for service account tokens.
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    authority = ("-subj", "/CN=sweetpoint-test-ca", "-addext", "keyUsage=critical,keyCertSign")
    _openssl(home, "req", "-x509", *key, *authority, "-keyout", "ca.key", "-out", "ca.crt")
    server = (
        *("-subj", "/CN=kube-apiserver", "-addext", f"subjectAltName=IP:127.0.0.1,IP:{SERVICE_IP}"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
        *("-addext", "extendedKeyUsage=serverAuth", "-CA", "ca.crt", "-CAkey", "ca.key"),
    )
    _openssl(home, "req", "-x509", *key, *server, "-keyout", "tls.key", "-out", "tls.crt")
    curve = ("-name", "prime256v1", "-genkey", "-noout")
    _openssl(home, "ecparam", *curve, "-out", "accounts.key")


class ControlPlane(Temporary):
    """A running API server; ``admin`` has all permissions.

    *home* has the certificates, data and logs. ``stop_server`` and ``start_server`` restart the API
    server at the same address with the same data.

    :param where: returns the command that executes a command in another network namespace.
    :param audit: keep the requests of service accounts for ``asked``.
    """

    def __init__(
        self,
        home: Path,
        where: Callable[[Sequence[str]], list[str]] = list,
        *,
        audit: bool = False,
    ) -> None:
        self.home = home
        self._where = where
        self._audits = audit
        ports: set[int] = set()
        while len(ports) < 3:  # the same port may be free twice
            ports.add(free_port())
        self.port, self._etcd_port, self._peer_port = ports
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca_file = home / "ca.crt"
        self._etcd: Process | None = None
        self._server: Process | None = None
        self._controllers: list[Process] = []
        _make_certificates(home)
        token = secrets.token_hex()
        (home / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        self.admin = Client(self.url, self.ca_file, token)

    def make(self) -> None:
        """Start etcd and the API server."""
        self._etcd = start("etcd", self._where(self._etcd_command()), self.home)
        self.start_server()

    def close(self) -> None:
        """End all programs and remove the data; the logs stay."""
        for controller in self._controllers:
            controller.stop()
        self._controllers = []
        self.stop_server()
        if self._etcd is not None:
            self._etcd.stop()
        shutil.rmtree(self.home / "etcd", ignore_errors=True)

    def start_server(self) -> None:
        """Start the API server and wait until it is ready.

        :raises DemoError: the API server or etcd ended; with the end of its log.
        """
        self._server = start("kube-apiserver", self._where(self._server_command()), self.home)
        programs = [self._server] if self._etcd is None else [self._etcd, self._server]
        answer("kube-apiserver", lambda: self.admin.get("/readyz"), programs)

    def stop_server(self) -> None:
        """Kill the API server, like a crash of its node: watches are not closed properly."""
        if self._server is not None:
            self._server.popen.kill()
            self._server.popen.wait()
            self._server = None

    def start_controllers(self, kubeconfig: Path) -> None:
        """Start the controller manager and the scheduler with the permissions of *kubeconfig*."""
        common = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1")
        accounts = ("--service-account-private-key-file=accounts.key", "--root-ca-file=ca.crt")
        for name, options in (("kube-controller-manager", accounts), ("kube-scheduler", ())):
            command = [str(program(name)), *common, *options]
            self._controllers.append(start(name, self._where(command), self.home))

    def asked(self, user: str) -> Counter[str]:
        """Return the requests of the service account *user* so far: verb and resource.

        It is the server's own audit log: a request is in it from its answer on, a watch from its
        begin on.
        """
        found = {}
        for line in (self.home / "audit.log").read_text().splitlines():
            entry = json.loads(line)
            if entry["user"]["username"] == user:
                about = entry.get("objectRef", {})
                what = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
                found[entry["auditID"]] = f"{entry['verb']} {what}"
        return Counter(found.values())

    def compact(self) -> None:
        """Compact etcd at the current revision, as the API server does every five minutes."""
        now = self._ask_etcd("range", {"key": "AA==", "count_only": True})["header"]["revision"]
        self._ask_etcd("compaction", {"revision": now, "physical": True})

    def _ask_etcd(self, what: str, body: Json) -> Json:
        url = f"http://127.0.0.1:{self._etcd_port}/v3/kv/{what}"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=DEADLINE_S) as answer:
            return dict(json.load(answer))

    def client(self, token: str) -> Client:
        """Return a client with *token*."""
        return Client(self.url, self.ca_file, token)

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
        return [
            *(str(program("kube-apiserver")), f"--etcd-servers=http://127.0.0.1:{self._etcd_port}"),
            *("--bind-address=127.0.0.1", f"--secure-port={self.port}"),
            *("--tls-cert-file=tls.crt", "--tls-private-key-file=tls.key"),
            *("--authorization-mode=RBAC", "--token-auth-file=tokens.csv"),
            *(f"--service-account-issuer={_ISSUER}", "--service-account-key-file=accounts.key"),
            "--service-account-signing-key-file=accounts.key",
            # No Service is needed here, and its endpoint could not be a loopback address.
            *("--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24"),
            # For logs of pods.
            "--kubelet-preferred-address-types=InternalIP",
            # The agent's own pod may be privileged.
            "--allow-privileged=true",
            *(self._audit_options() if self._audits else ()),
        ]

    def _audit_options(self) -> list[str]:
        accounts = {"level": "Metadata", "userGroups": ["system:serviceaccounts"]}
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [accounts, {"level": "None"}],
        }
        (self.home / "audit.json").write_text(json.dumps(policy))
        return ["--audit-policy-file=audit.json", "--audit-log-path=audit.log"]
