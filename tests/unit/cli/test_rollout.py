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
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollout", "--namespace", "ns", *options]) == 2
    assert capsys.readouterr().err.startswith("sweetpoint: ")


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
