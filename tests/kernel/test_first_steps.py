# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of the documents on this host, in their order: from doctor to the page."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import re
import shlex
import signal
import subprocess
import sys
import urllib.request

import pytest

from controller.demo.programs import free_port
from tests.kernel.agent import eventually

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).parent / "sweetpoint"


def block(document: str, heading: str) -> list[list[str]]:
    """Return the calls of sweetpoint, without its name, in the first shell block of a part."""
    part = (ROOT / document).read_text().split(f"\n## {heading}\n")[1]
    found = re.search(r"```sh\n(.*?)```", part, re.DOTALL)
    assert found is not None
    lines = [shlex.split(line, comments=True) for line in found[1].splitlines()]
    return [words[words[0] == "sudo" :][1:] for words in lines if words]


class Host:
    """Runs commands with the paths of the documents in a directory of the test."""

    def __init__(self, home: Path) -> None:
        self.config = home / "config.yaml"
        self.options = {
            "run": ["--config", str(self.config)],
            "check": ["--config", str(self.config)],
            "top": ["--config", str(self.config)],
            "pause": ["--state-dir", str(home / "run")],
            "resume": ["--state-dir", str(home / "run")],
            "explain": ["--data-dir", str(home / "data")],
            "advise": ["--data-dir", str(home / "data")],
        }
        self.home = home

    def command(self, words: list[str]) -> list[str]:
        mapped = [word.replace("/etc/sweetpoint/config.yaml", str(self.config)) for word in words]
        return [str(PROGRAM), *mapped, *self.options.get(words[0], [])]

    def output(self, *words: str) -> str:
        done = subprocess.run(
            self.command([*words]), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


@contextlib.contextmanager
def running(host: Host) -> Iterator[str]:
    """The commands of the README up to the running agent; the address of its page."""
    *before, run = block("README.md", "Use it")
    assert before == block("docs/OPERATIONS.md", "First configuration")
    assert [words[0] for words in before] == ["doctor", "init", "check"]
    for words in before:
        if words[0] == "check":
            port = free_port()
            with host.config.open("a") as config:
                # A machine that runs tests may have an agent with the usual ones.
                config.write(f"http: 127.0.0.1:{port}\n")
                config.write(f"state_dir: {host.home / 'run'}\ndata_dir: {host.home / 'data'}\n")
        assert host.output(*words)
    (host.home / "run").mkdir(mode=0o700)
    with subprocess.Popen(host.command(run), stderr=subprocess.PIPE, text=True) as agent:
        try:
            address = f"http://127.0.0.1:{port}"
            eventually("the agent is ready", 60, lambda: ready(f"{address}/readyz"))
            yield address
        finally:
            agent.send_signal(signal.SIGTERM)
            _, log = agent.communicate(timeout=30)
    assert agent.returncode == 0, log
    assert "Traceback" not in log


def ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def page(address: str) -> str:
    with urllib.request.urlopen(f"{address}/", timeout=10) as answer:
        return str(answer.read().decode())


def test_from_doctor_to_the_page(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with running(host) as address:
        found = page(address)
        for title in ("Services and their sweet points", "What enforcing would bring", "Over time"):
            assert title in found
        assert re.search(r'<p class="soft">observe \|', found)
        assert "mode: observe" in host.output("check", "--resolved")
        assert "observe" in host.output("top", "--once")
        assert "everything" in host.output("pause", "--for", "30m")
        eventually("the page shows the pause", 10, lambda: "paused: everything" in page(address))
        host.output("resume")
    assert "An agent ran for" in host.output("advise")
