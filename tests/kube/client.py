# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The tests' own API client: plain HTTP and JSON, independent of the agent's client."""

import http.client
import json
from pathlib import Path
import ssl
from typing import Any
from urllib.parse import urlsplit

from tests.support.waiting import DEADLINE_S

__all__ = ("Client", "Json", "Refused")

Json = dict[str, Any]


class Refused(Exception):
    """The server answered with an error: the HTTP ``status`` and the Status object."""

    def __init__(self, status: int, answer: Json) -> None:
        super().__init__(f"{status}: {answer.get('message', answer)}")
        self.status = status
        self.answer = answer


class Client:
    """Requests with one bearer token; thread-safe, because each has its own connection."""

    def __init__(self, url: str, ca_file: Path, token: str) -> None:
        self._address = urlsplit(url).netloc
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self.token = token

    def call(
        self, method: str, path: str, body: Json | None = None, kind: str = "application/json"
    ) -> Json:
        """Return the object in the response.

        :raises Refused: the server answered with an error.
        :raises OSError: the server did not answer, or only with a part.
        """
        connection = http.client.HTTPSConnection(
            self._address, timeout=DEADLINE_S, context=self._tls
        )
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, body=text, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:  # a server that is killed while it answers
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()
        try:
            found = json.loads(content)
        except ValueError:  # /readyz, and errors of filters in front of the API handlers
            found = {"message": content.decode(errors="replace")}
        if answer.status >= 400:
            raise Refused(answer.status, found)
        return dict(found)

    def get(self, path: str) -> Json:
        """Return an object or a list."""
        return self.call("GET", path)

    def create(self, path: str, body: Json) -> Json:
        """Create *body* in the collection *path*, or post it to a subresource."""
        return self.call("POST", path, body)

    def replace(self, path: str, body: Json) -> Json:
        """Replace the object at *path* with *body*."""
        return self.call("PUT", path, body)

    def patch(self, path: str, body: Json) -> Json:
        """Apply the merge patch *body* to the object at *path*; ``None`` removes a field."""
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str) -> Json:
        """Delete the object at *path*."""
        return self.call("DELETE", path)
