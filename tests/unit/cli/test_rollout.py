# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
import signal
import threading

import pytest

from controller.cli.main import main
from tests.support.kube.api_stand_in import ApiStandIn
from tests.support.waiting import eventually

LEASE = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/sweetpoint-rollout"


@pytest.mark.parametrize(
    "options", [("--namespace", "a/b"), ("--profiles", ""), ("--metrics-port", "65536")]
)
def test_a_wrong_option_is_refused(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = str(_kubeconfig_of_nobody(tmp_path))
    assert main(["rollout", "--namespace", "ns", "--kubeconfig", kubeconfig, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sweetpoint: ")
    assert kubeconfig not in error


@pytest.mark.parametrize("content", [None, "", "[1]", "a: [", "{clusters: 1}", "\x00"])
def test_a_kubeconfig_that_cannot_be_read_ends_it_at_once(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    if content is not None:
        kubeconfig.write_text(content)
    assert main(["rollout", "--namespace", "ns", "--kubeconfig", str(kubeconfig)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"sweetpoint: {kubeconfig}: ")


def test_a_pod_without_a_service_account_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["rollout", "--namespace", "ns"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sweetpoint: in-cluster: ")


def test_a_server_that_is_away_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = _kubeconfig_of_nobody(tmp_path)
    waited: list[float] = []

    def wait(signals: set[signal.Signals], seconds: float) -> signal.Signals | None:
        waited.append(seconds)
        return signal.SIGTERM if len(waited) == 3 else None

    monkeypatch.setattr(signal, "sigtimedwait", wait)
    assert main(["rollout", "--namespace", "ns", "--kubeconfig", str(kubeconfig)]) == 0
    assert len(waited) == 3


def _kubeconfig_of_nobody(tmp_path: Path) -> Path:
    with ApiStandIn() as server:
        return server.kubeconfig(tmp_path / "kubeconfig")


def test_a_signal_ends_it_and_gives_the_lease_back(tmp_path: Path) -> None:
    with ApiStandIn() as server:
        kubeconfig = str(server.kubeconfig(tmp_path / "kubeconfig"))

        def end() -> None:
            eventually("the Lease", lambda: LEASE in server.objects)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

        ender = threading.Thread(target=end)
        ender.start()
        assert main(["rollout", "--namespace", "ns", "--kubeconfig", kubeconfig]) == 0
        ender.join()
        assert server.objects[LEASE]["spec"]["leaseDurationSeconds"] == 60
        assert "holderIdentity" not in server.objects[LEASE]["spec"]
