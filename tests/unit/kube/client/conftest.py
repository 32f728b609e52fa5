# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A client of a server that a test plays."""

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.kube.client.api import Api, Limits
from tests.support.http.raw_server import RawHttpServer
from tests.support.kube.kubeconfig import write_kubeconfig
from tests.support.kube.limits import PATIENT
from tests.unit.kube.client.answers import SECRET


@pytest.fixture
def connect(tmp_path: Path) -> Callable[..., Api]:
    def make(server: RawHttpServer, limits: Limits | None = None, **fields: str) -> Api:
        user = {"token": SECRET} if "tokenFile" not in fields else {}
        user |= {key: text for key, text in fields.items() if key == "tokenFile"}
        cluster = {key: text for key, text in fields.items() if key != "tokenFile"}
        path = tmp_path / "kubeconfig"
        write_kubeconfig(path, server.url, user=user, cluster=cluster)
        return Api(path, limits or PATIENT)

    return make
