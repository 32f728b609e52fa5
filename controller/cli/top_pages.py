# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where ``sweetpoint top`` gets its pages: /statusz of an address, or the agent of a node."""

import argparse
from collections.abc import Generator, Mapping
import http.client
import itertools
import json
from pathlib import Path
import shutil
import subprocess
import threading
import time
from typing import Any
import urllib.error
import urllib.request

from controller.cli.common import find_config
from controller.host.facts import die_with_parent
from controller.host.names import printable
from controller.host.os_errors import reason

__all__ = ("Page", "SourceError", "fetch", "own_address", "own_page", "pages")

_TIMEOUT_S = 5.0
# A page about a thousand workloads has less than one MiB.
_MAX_BYTES = 32 << 20
# Of an error that a server or kubectl gives as a reason.
_MOST_REASON = 400
_IN_IMAGE = "/opt/sweetpoint/bin/sweetpoint"  # deploy/Dockerfile
_LABEL = "app.kubernetes.io/name=sweetpoint"

_HINTS = {
    401: "; see --token-file",
    403: "; see --token-file",
    421: "; without a token use the address of the host",
}

Page = Mapping[str, Any]


class SourceError(Exception):
    """There is no page now; the message says why."""


def pages(
    arguments: argparse.Namespace, stop: threading.Event
) -> Generator[Page | SourceError, None, None]:
    """Yield the pages of the selected agent, every ``interval`` seconds, until *stop* is set.

    With ``once`` there are two, of which the first one is for differences; with ``raw`` one.

    In place of a page that cannot be had the reason is yielded, and the next one is tried.

    :raises SourceError: the first page cannot be had.
    :raises ConfigError: neither an address nor a node is given, and the configuration is invalid.
    """
    if arguments.node is not None:
        yield from _pages_of_node(arguments)
        return
    url, token_file = _address(arguments)
    first = True
    while not stop.is_set():
        began_s = time.monotonic()
        try:
            page = fetch(url, token_file)
        except SourceError as error:
            if first:
                raise
            yield error
        else:
            yield page
        if arguments.once and (arguments.raw or not first):
            return
        first = False
        stop.wait(max(0.0, began_s + arguments.interval - time.monotonic()))


def own_page(config: Path) -> Page:
    """Return the page of the agent of this host whose configuration is *config*.

    :raises SourceError: it cannot be had.
    :raises ConfigError: the configuration is invalid.
    """
    return fetch(*own_address(config))


def _address(arguments: argparse.Namespace) -> tuple[str, Path | None]:
    if arguments.url is not None:
        if not arguments.url.startswith(("http://", "https://")):
            raise SourceError("--url must begin with http:// or https://")
        return arguments.url.rstrip("/"), arguments.token_file
    url, token_file = own_address(find_config(arguments))
    return url, arguments.token_file or token_file


def own_address(path: Path) -> tuple[str, Path | None]:
    """Return the URL of the agent whose configuration is *path*, and the file of its token.

    :raises SourceError: the agent has no pages.
    :raises ConfigError: the configuration is invalid.
    """
    from controller.config.load import load

    config = load(path)
    if config.http is None:
        raise SourceError(f"{path}: http is off, so the agent has no pages")
    host, port = config.http
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - any address
    where = f"[{host}]" if ":" in host else host
    return f"http://{where}:{port}", config.http_token_file


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection, which would take the token to another server."""

    def redirect_request(self, *_: object) -> None:
        return None


def fetch(url: str, token_file: Path | None) -> Page:
    """Return the page of the agent at *url*.

    :raises SourceError: it cannot be had.
    """
    headers = {} if token_file is None else {"Authorization": f"Bearer {_token(token_file)}"}
    try:
        request = urllib.request.Request(f"{url}/statusz", headers=headers)  # noqa: S310 - http(s)
        # Without the proxies of the environment: the page is that of a host, mostly of this one.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            data = answer.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        hint = _HINTS.get(error.code, "")
        raise SourceError(f"{url}/statusz: HTTP {error.code}{hint}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        # It may have a line of the answer in it.
        cause = getattr(error, "reason", None) or error
        text = reason(cause) if isinstance(cause, Exception) else str(cause)
        what = printable(text[:_MOST_REASON])
        raise SourceError(f"{url}/statusz: {what}; does the agent run?") from None
    return _parse(data, url)


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        text = reason(error) if isinstance(error, OSError) else "not ASCII text"
        raise SourceError(f"--token-file {path}: {text}") from None
    if not token.isprintable():  # the message of urllib would have the token in it
        raise SourceError(f"--token-file {path}: must have one line")
    return token


def _parse(data: bytes | str, where: str) -> Page:
    try:
        page = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        page = None
    if not isinstance(page, dict):
        raise SourceError(f"{where}: not a page of an agent")
    return page


def _pages_of_node(arguments: argparse.Namespace) -> Generator[Page, None, None]:
    """Yield pages that this command, run in the pod of the node's agent, prints."""
    if shutil.which("kubectl") is None:
        raise SourceError("--node needs kubectl")
    namespace, pod = _agent_pod(arguments.node)
    inside = [_IN_IMAGE, "top", "--raw", "--interval", f"{arguments.interval:g}"]
    inside += ["--once"] if arguments.once and arguments.raw else []
    command = ["kubectl", "exec", "-n", namespace, pod, "--", *inside]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        # The thread that draws may end while another one waits for a line of kubectl.
        preexec_fn=die_with_parent,
    ) as process:
        assert process.stdout is not None
        try:
            for number in itertools.count():
                if not (line := process.stdout.readline(_MAX_BYTES + 1)):
                    break
                yield _parse(line, f"{namespace}/{pod}")
                if arguments.once and not arguments.raw and number == 1:
                    return
        finally:
            process.terminate()
    if not arguments.once or process.returncode != 0:
        raise SourceError(f"kubectl exec in {namespace}/{pod} ended: {process.returncode}")


def _agent_pod(node: str) -> tuple[str, str]:
    selectors = ("-l", _LABEL, f"--field-selector=spec.nodeName={node},status.phase=Running")
    columns = "jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{'\\n'}{end}"
    command = ["kubectl", "get", "pods", "--all-namespaces", *selectors, "-o", columns]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        raise SourceError("kubectl get pods: no answer within 60 s") from None
    if done.returncode != 0:
        # Before the reason kubectl writes its log.
        *_, why = done.stderr.strip().splitlines() or ["failed"]
        raise SourceError(f"kubectl get pods: {printable(why[:_MOST_REASON])}")
    found = [line.split() for line in done.stdout.splitlines() if len(line.split()) == 2]
    if not found:
        raise SourceError(f"no agent runs on node {node!r} (no pod with the label {_LABEL})")
    return found[0][0], found[0][1]
