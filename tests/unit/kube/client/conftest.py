# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A client of a server that a test plays."""

from collections.abc import Callable
import json
from pathlib import Path

import pytest

from controller.kube.client.api import Api, Limits
from tests.support.http.raw_server import RawHttpServer
from tests.unit.kube.client.answers import SECRET


@pytest.fixture
def connect(tmp_path: Path) -> Callable[..., Api]:
    def make(server: RawHttpServer, limits: Limits | None = None, **fields: str) -> Api:
        user = {"token": SECRET} if "tokenFile" not in fields else {}
        user |= {key: text for key, text in fields.items() if key == "tokenFile"}
        cluster = {"server": server.url} | {k: v for k, v in fields.items() if k != "tokenFile"}
        config = {
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        return Api(path, limits)

    return make
