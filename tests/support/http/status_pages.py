# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of the agent's status server, as a client gets them."""

import contextlib
import http.client

from tests.support.waiting import DEADLINE_S, eventually


def get(port: int, page: str) -> tuple[int, str]:
    """Return status and text of *page*.

    :raises OSError: there is no answer, or only a part of one: the agent has ended, or was stopped
        for longer than a connection may last.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("GET", page)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def wait_for(port: int, page: str) -> tuple[int, str]:
    """Return status and text of *page* from an agent that starts, or that stood for a while."""

    def answer() -> tuple[int, str] | None:
        with contextlib.suppress(OSError):
            return get(port, page)
        return None

    return eventually("an answer", answer)
