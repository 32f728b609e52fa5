# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that evaluates the committed rules."""

from collections.abc import Mapping
import json
from pathlib import Path
import subprocess
from typing import Any
import urllib.error
import urllib.parse
import urllib.request

from controller.demo.programs import free_port
from tests.support.waiting import DEADLINE_S

__all__ = ("Prometheus",)

_RULES = Path(__file__).parents[2] / "deploy" / "rules" / "sweetpoint.yaml"


class Prometheus:
    """A server that scrapes and evaluates the rules, both every second.

    :param home: the directory of its files; ``tsdb`` in it may have data already.
    :param config: further keys of its configuration.
    """

    def __init__(self, home: Path, config: Mapping[str, object]) -> None:
        self._log = home / "prometheus.log"
        address = f"127.0.0.1:{free_port()}"
        self._url = f"http://{address}"
        whole = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(_RULES)],
            **config,
        }
        (home / "prometheus.yaml").write_text(json.dumps(whole))
        command = ["prometheus", f"--config.file={home}/prometheus.yaml"]
        command += [f"--storage.tsdb.path={home}/tsdb", f"--web.listen-address={address}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, page: str, **parameters: str) -> Any:
        """Return the data of the answer, or the message of an error."""
        url = f"{self._url}/api/v1/{page}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                return str(json.load(error)["error"])

    def query(self, expression: str) -> Any:
        """Return the series, or the message of an error."""
        answer = self.get("query", query=expression)
        return answer if isinstance(answer, str) else answer["result"]

    def has(self, expression: str) -> bool:
        """Whether it runs, answers, and has a series of *expression*."""
        assert self._process.poll() is None, self.log
        try:
            return self.query(expression) not in ([], "")
        except (OSError, ValueError):  # while it starts, it answers with a text
            return False
