# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Certificates that a kubeconfig contains, kept in memory.

The Kubernetes package writes them to temporary files and reads those with every connection. A
cleaner of temporary files removes them while an agent runs for weeks, and a key on a disk is one
more secret to guard. Here they are read once, into an ``SSLContext``, and their files end.
"""

from collections.abc import Mapping
from pathlib import Path
import ssl
from typing import Any, Protocol

from controller.kube.client.errors import ApiUnreachable

__all__ = ("TlsFiles", "inline_tls", "missing_file")


class TlsFiles(Protocol):
    """The files of a ``Configuration`` of the Kubernetes package."""

    ssl_ca_cert: str | None
    cert_file: str | None
    key_file: str | None
    verify_ssl: bool


def inline_tls(files: TlsFiles, directory: Path) -> Mapping[str, Any]:
    """Return the arguments of a connection pool that replace *files*, none if none is inline.

    Files in *directory* are inline ones, and may be removed afterwards.

    :raises ApiUnreachable: one of them is no certificate or no key.
    :raises OSError: one of them cannot be read.
    """
    ca, cert, key = files.ssl_ca_cert, files.cert_file, files.key_file
    inline = {path for path in (ca, cert, key) if path and Path(path).parent == directory}
    if not inline:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not files.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    arguments: dict[str, Any] = {"ssl_context": context}
    try:
        if ca in inline:
            context.load_verify_locations(cafile=ca)
            arguments["ca_certs"] = None
        elif ca is None:
            context.load_default_certs()
        if cert and inline & {cert, key}:
            context.load_cert_chain(cert, key)
            arguments |= {"cert_file": None, "key_file": None}
    except ssl.SSLError as error:
        # Without the text of the exception, which may quote what it read.
        reason = error.reason or type(error).__name__
        raise ApiUnreachable(
            f"TLS: a certificate or key in the kubeconfig cannot be used ({reason})"
        ) from None
    return arguments


def missing_file(files: TlsFiles, replaced: Mapping[str, Any]) -> str | None:
    """Return which of *files* does not exist, unless *replaced*; see ``inline_tls``."""
    names = {
        "ca_certs": files.ssl_ca_cert,
        "cert_file": files.cert_file,
        "key_file": files.key_file,
    }
    return next(
        (
            path
            for argument, path in names.items()
            if path and argument not in replaced and not Path(path).is_file()
        ),
        None,
    )
