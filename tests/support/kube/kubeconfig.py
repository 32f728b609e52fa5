# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Files with the address of a server and the credentials for it."""

from collections.abc import Mapping
import json
from pathlib import Path

__all__ = ("write_kubeconfig",)


def write_kubeconfig(
    path: Path, server: str, *, user: Mapping[str, str], cluster: Mapping[str, str] | None = None
) -> Path:
    """Write a kubeconfig to *path* and return *path*.

    :param server: the URL.
    :param user: fields of the user, such as its token.
    :param cluster: fields of the cluster in addition to the URL.
    """
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "test", "user": dict(user)}],
    }
    path.write_text(json.dumps(config))
    return path
