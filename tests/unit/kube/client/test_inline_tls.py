# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Certificates inside a kubeconfig, which no cleaner of temporary files can take away."""

from base64 import b64encode
from pathlib import Path
import ssl
import subprocess
import tempfile

import pytest

from controller.kube.client.api import Api
from controller.kube.client.errors import ApiUnreachable
from tests.support.http.raw_server import RawHttpServer, ok
from tests.support.kube.kubeconfig import write_kubeconfig


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``x.crt`` and ``x.key``, of the server and of its client."""
    home = tmp_path_factory.mktemp("authority")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
            *("ec_paramgen_curve:P-256", "-nodes", "-keyout", home / "x.key"),
            *("-out", home / "x.crt", "-days", "2", "-subj", "/CN=x"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return home


@pytest.fixture
def server_tls(authority: Path) -> ssl.SSLContext:
    """The server's side, which asks the client for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "x.crt", authority / "x.key")
    context.load_verify_locations(authority / "x.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of all temporary files."""
    home = tmp_path / "tmp"
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    return home


def inline(path: Path) -> str:
    return b64encode(path.read_bytes()).decode()


def test_inline_certificates_need_no_file(
    authority: Path, server_tls: ssl.SSLContext, temporary: Path, tmp_path: Path
) -> None:
    data = {name: inline(authority / f"x.{name}") for name in ("crt", "key")}
    user = {"client-certificate-data": data["crt"], "client-key-data": data["key"], "token": "t"}
    with RawHttpServer(ok(b"{}"), tls=server_tls) as server:
        cluster = {"certificate-authority-data": data["crt"]}
        url = f"https://127.0.0.1:{server.port}"
        config = write_kubeconfig(tmp_path / "config", url, user=user, cluster=cluster)
        api = Api(config)
        for _ in range(3):
            assert api.get("/x") == {}
            assert not [*temporary.iterdir()], "neither a certificate nor a key stays on the disk"
        assert Api(config).get("/x") == {}, "read again"
    assert "Authorization: Bearer t\r\n" in server.requests[-1]


def test_an_inline_authority_is_verified(
    authority: Path, server_tls: ssl.SSLContext, tmp_path: Path
) -> None:
    other = tmp_path / "other.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", tmp_path / "other.key", "-out", other, "-subj", "/CN=other"),
        ],
        check=True,
        capture_output=True,
    )
    server_tls.verify_mode = ssl.CERT_NONE
    with RawHttpServer(ok(b"{}"), tls=server_tls) as server:
        url = f"https://127.0.0.1:{server.port}"
        path = tmp_path / "config"
        for authority_file, verified in ((other, False), (authority / "x.crt", True)):
            cluster = {"certificate-authority-data": inline(authority_file)}
            api = Api(write_kubeconfig(path, url, user={}, cluster=cluster))
            if verified:
                assert api.get("/x") == {}
            else:
                with pytest.raises(ApiUnreachable, match=r"TLS: .*authority"):
                    api.get("/x")


def test_an_inline_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    cluster = {"certificate-authority-data": b64encode(b"secret nonsense").decode()}
    config = write_kubeconfig(tmp_path / "c", "https://127.0.0.1:1", user={}, cluster=cluster)
    with pytest.raises(ApiUnreachable, match="in the kubeconfig cannot be used") as error:
        Api(config).get("/x")
    assert "secret" not in str(error.value)


def test_a_named_file_that_is_removed_is_named(
    authority: Path, server_tls: ssl.SSLContext, tmp_path: Path
) -> None:
    named = tmp_path / "ca.crt"
    named.write_bytes((authority / "x.crt").read_bytes())
    server_tls.verify_mode = ssl.CERT_NONE
    with RawHttpServer(ok(b"{}"), tls=server_tls) as server:
        cluster = {"certificate-authority": str(named)}
        url = f"https://127.0.0.1:{server.port}"
        api = Api(write_kubeconfig(tmp_path / "c", url, user={}, cluster=cluster))
        assert api.get("/x") == {}
        named.unlink()
        with pytest.raises(ApiUnreachable, match=f"^{named} does not exist"):
            api.get("/x")
        named.write_bytes((authority / "x.crt").read_bytes())
        assert api.get("/x") == {}
