# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A kubectl that answers from files, and the plugin that runs it."""

import json
import os
from pathlib import Path
import subprocess
from typing import Any

from deploy import kubectl_sweetpoint as plugin
from tests.support.waiting import DEADLINE_S

__all__ = ("FORBIDDEN", "HOSTILE", "PLUGIN", "FakeCluster", "page", "rows")

PLUGIN = Path(plugin.__file__)
HOSTILE = "x\x1b[2J\n\u202e\ud800"
FORBIDDEN = (
    "E1127 memcache.go:265] noise\n"
    'Error from server (Forbidden): pods is forbidden: User "eve" cannot list it\n'
)
# Answers with the file that is named after what it is asked for, and writes down what that was.
KUBECTL = """\
#!/bin/sh
cd "${0%/*}"
printf '%s\\n' "$*" >>calls
while [ "${1#--}" != "$1" ]; do shift; done
case "$1" in
get) name="$2" ;;
annotate) name=annotate ;;
exec) name="$4" ;;
esac
base="$name"
for word; do
    # A trial that this began is the one that is told of later.
    case "$word" in --label=*) echo "${word#*=}" >"$base.label" ;; esac
    # Another answer to a command with this option; what it is given is kept.
    [ "$word" != -i ] || cat >"$name.in"
    [ "$word" != --stop ] || [ ! -e "$name.stopped" ] || mv "$name.stopped" "$name.--latest"
    [ ! -e "$name.$word" ] || option="$word"
done
name="$name${option:+.$option}"
# The next of several answers is from now on the one.
set -- "$name.next"/*
if [ -e "$1" ]; then
    kind="${1##*/}"
    rm -f "$name.err"
    mv "$1" "$name${kind#??}"
fi
[ ! -e "$name.hang" ] || exec sleep 600
[ ! -e "$name.err" ] || { cat "$name.err" >&2; exit 1; }
[ ! -e "$base.label" ] || exec sed "s/LABEL/$(cat "$base.label")/" "$name"
exec cat "$name"
"""


class FakeCluster:
    """The files with which the fake kubectl answers."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._pods: list[dict[str, Any]] = []
        (home / "pods").write_text('{"items": []}')
        (home / "calls").touch()
        (home / "annotate").touch()
        (home / "kubectl").write_text(KUBECTL)
        (home / "kubectl").chmod(0o755)
        self.nodes("n1")

    def nodes(self, *lines: str) -> None:
        """Set what the template prints about the nodes."""
        (self.home / "nodes").write_text("".join(f"{line}\n" for line in lines))

    def agent(self, node: str, answer: object = None, ready: bool = True, **names: str) -> None:
        """Add an agent with *answer*, a text or a page."""
        pod = names.get("pod", f"agent-{node}")
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        self._pods.append(
            {
                "metadata": {
                    "name": pod,
                    "namespace": names.get("namespace", "ns"),
                    "labels": {"app.kubernetes.io/version": names.get("version", "1.2")},
                },
                "spec": {"nodeName": node},
                "status": {"phase": "Running", "conditions": [condition]},
            }
        )
        (self.home / "pods").write_text(json.dumps({"items": self._pods}))
        text = answer if isinstance(answer, str) else json.dumps(answer or page())
        if "/" not in pod:
            (self.home / pod).write_text(text)

    def answer(self, node: str, option: str, answer: object) -> None:
        """Have the agent of *node* answer a command with *option* so, a text or a page."""
        text = answer if isinstance(answer, str) else json.dumps(answer)
        (self.home / f"agent-{node}.{option}").write_text(text)

    def answers(self, name: str, *answers: object) -> None:
        """Give one of *answers* after the other to what has the file *name*; the last one stays.

        An ``OSError`` is a failure with its text.
        """
        place = self.home / f"{name}.next"
        place.mkdir()
        for number, each in enumerate(answers):
            if isinstance(each, OSError):
                (place / f"{number:02}.err").write_text(f"{each}\n")
            else:
                (place / f"{number:02}").write_text(
                    each if isinstance(each, str) else json.dumps(each)
                )

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.home}:{os.environ['PATH']}", "TERM": "xterm"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the plugin."""
        return subprocess.run(
            [PLUGIN, *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def calls(self) -> list[str]:
        """Return what kubectl was asked for."""
        return (self.home / "calls").read_text().splitlines()


def page(ratio: float = 0.5, **fields: object) -> dict[str, object]:
    """Return an answer of ``sweetpoint status --json``."""
    worst = {"service": "web", "indicator": "runq_p99", "value": "1ms", "sweet_point": "2ms"}
    return {
        "source": "agent",
        "mode": "enforce",
        "best_effort": 2,
        "limited": [{"name": "job"}],
        "knobs": [{"knob": "cpu.quota"}],
        "paused": [],
        "problems": [],
        "worst": {**worst, "ratio": ratio},
        **fields,
    }


def rows(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of the table below its head, with single blanks."""
    head, *lines = done.stdout.splitlines()
    assert head.split() == [
        "NODE",
        "AGENT",
        "VERSION",
        "MODE",
        "LIMITED",
        "WORST",
        "SERVICE",
        "NOTES",
    ]
    return [" ".join(line.split()) for line in lines]
