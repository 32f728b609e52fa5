#!/usr/bin/env python3
# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``kubectl sweetpoint``: the agents of a cluster, and one of them by the name of its node.

One file for Python 3.9 and newer, to be copied into PATH as ``kubectl-sweetpoint``. It has no rule
of the agent: a node is asked by ``kubectl exec`` of the agent's own command in its pod. The pages
would need a token, or be closed by a NetworkPolicy, where exec works with each configuration.
"""

from __future__ import annotations

import argparse
import codecs
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
from typing import IO, Any, NoReturn
from urllib.parse import unquote_plus

# As those of the agent's command.
DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130

_AGENT = "/opt/sweetpoint/bin/sweetpoint"
_LABEL = "app.kubernetes.io/name=sweetpoint"
# Nodes with it have no agent on purpose: the chart's DaemonSet leaves them out.
_WANTED = "sweetpoint.dev/agent!=off"
_PAUSE, _REASON = "sweetpoint.dev/pause", "sweetpoint.dev/pause-reason"
# Encoded, because a value may have line breaks in it. JSON would have each image of each node.
_NODES = (
    "{{range .items}}{{urlquery .metadata.name}}"
    f'{{{{range $k, $v := .metadata.annotations}}}}{{{{if eq $k "{_REASON}"}}}} {{{{urlquery $v}}}}'
    '{{end}}{{end}}{{"\\n"}}{{end}}'
)
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_DURATION = re.compile(r"([0-9]{1,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LIST_TIMEOUT_S = 120.0
# 5,000 pods have some 50 MB; the answer of an agent with a thousand workloads less than one.
_MOST_LIST_BYTES, _MOST_BYTES = 1 << 29, 1 << 23
_MOST_TEXT, _MOST_NUMBER = 400, 20
_HINTS = (
    ("forbidden", "; SECURITY.md has the rights of each command ('Rights of the kubectl plugin')"),
    ("must be logged in|unauthorized|provide credentials", "; log in, or see --context"),
    ("refused|no such host|unable to connect|i/o timeout", "; see --context and --kubeconfig"),
    ("exit code 137", "; killed: does the agent's pod end, or is its memory short?"),
    ("executable file not found|no such file", "; is the pod's image one of sweetpoint?"),
    ("unrecognized arguments|unknown argument", "; is the agent older than this file?"),
)


class PluginError(Exception):
    """What was asked for cannot be had; the message says what to do. ``code`` is the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def printable(text: str) -> str:
    r"""Return *text* with each character that is not printable as an escape, such as ``\n``.

    The same as in controller/host/names.py, which one file cannot import.
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


class Kubectl:
    """Runs kubectl with *options*, such as ``--context=x``, never through a shell."""

    def __init__(self, options: Sequence[str], namespace: str | None) -> None:
        self._command = ["kubectl", *options]
        self.namespace = namespace
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start kubectl with pipes for its output.

        :raises PluginError: it cannot be started.
        """
        # Ctrl-C interrupts only the main thread: there it could come before the process is noted.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._start, arguments).result()

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        command, nothing, pipe = [*self._command, *arguments], subprocess.DEVNULL, subprocess.PIPE
        with self._lock:
            if self._stopped:
                raise PluginError("interrupted", INTERRUPTED)
            try:
                process = subprocess.Popen(command, stdin=nothing, stdout=pipe, stderr=pipe)
            except OSError as error:
                why = f"kubectl cannot be started ({error.strerror}); install it into PATH"
                raise PluginError(why) from None
            self._running.add(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """End *process* if it runs, and return its exit code."""
        process.kill()
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code

    def stop(self) -> None:
        """End all that run; none is started afterwards."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.kill()
        for process in running:
            process.wait()

    def ask(
        self, arguments: Sequence[str], timeout_s: float, most_bytes: int = _MOST_BYTES
    ) -> tuple[str, str]:
        """Return what kubectl prints, and why that is not all; empty if it is."""
        with self.start(arguments) as process:
            try:
                output, errors, problem = _read(process, timeout_s, most_bytes)
                code = 0 if problem else process.wait()
            finally:
                self.end(process)
        return output, problem or (_why(errors, code) if code else "")

    def get(self, *arguments: str) -> str:
        """Return what kubectl prints.

        :raises PluginError: it fails.
        """
        output, problem = self.ask(arguments, _LIST_TIMEOUT_S, _MOST_LIST_BYTES)
        if problem:
            raise PluginError(f"kubectl {arguments[0]} {arguments[1]}: {problem}")
        return output


def _read(
    process: subprocess.Popen[bytes], timeout_s: float, most_bytes: int
) -> tuple[str, str, str]:
    """Return both outputs of *process*, and why they are not complete; empty if they are."""
    deadline_s = time.monotonic() + timeout_s
    texts: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    problem = ""
    with selectors.DefaultSelector() as selector:
        for stream in texts:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and not problem:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                problem = f"no answer within {timeout_s:g} s; see --timeout"
            for key, _ in selector.select(max(0.0, left_s)):
                data = os.read(key.fd, 1 << 16)
                texts[key.fileobj] += data
                if not data:
                    selector.unregister(key.fileobj)
                if len(texts[key.fileobj]) > most_bytes:
                    problem = f"the answer has more than {most_bytes >> 20} MiB"
    output, errors = (bytes(each).decode(errors="replace") for each in texts.values())
    return output, errors, problem


def _why(errors: str, code: int) -> str:
    """Return the reason in what kubectl wrote, and what to do."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    # kubectl exec has the reason of the command in the pod before its own line.
    if len(lines) > 1 and lines[-1].startswith("command terminated with exit code"):
        lines.pop()
    text = printable((lines or [f"exit code {code}"])[-1][:_MOST_TEXT])
    hints = (hint for pattern, hint in _HINTS if re.search(pattern, text, re.IGNORECASE))
    return text + next(hints, "")


@dataclass(frozen=True)
class Row:
    """A node and the pod of its agent; ``None`` is not known, ``error`` why it says nothing.

    ``version`` is the one of the chart that made the pod, ``status`` what the agent says.
    """

    node: str
    namespace: str = ""
    pod: str = ""
    ready: bool | None = None
    version: str = ""
    pause_reason: str = ""
    status: Mapping[str, Any] | None = None
    error: str = ""

    @property
    def worst(self) -> Mapping[str, Any]:
        """The indicator that is most above its sweet point; empty if it is not known."""
        return _mapping((self.status or {}).get("worst"))

    def texts(self, key: str) -> list[str]:
        """Return a list of texts of the agent."""
        value = (self.status or {}).get(key)
        return [_text(each) for each in value] if isinstance(value, list) else []

    def badness(self) -> tuple[Any, ...]:
        """Return the key of the order: what says nothing, what is not well, then by suffering."""
        is_well = not self.texts("problems")
        return (not self.error, self.ready is True, is_well, -_ratio(self.worst), self.node)


def agents(kubectl: Kubectl, node: str | None = None) -> dict[str, Row]:
    """Return the agent of each node with one, or that of *node*; a ready one if there are several.

    :raises PluginError: kubectl fails.
    """
    where = ["--all-namespaces"] if kubectl.namespace is None else [f"-n={kubectl.namespace}"]
    where += [] if node is None else [f"--field-selector=spec.nodeName={node}"]
    text = kubectl.get("get", "pods", *where, "-l", _LABEL, "-o", "json")
    found: dict[str, Row] = {}
    for pod in _records(_parsed(text).get("items")):
        metadata, status = _mapping(pod.get("metadata")), _mapping(pod.get("status"))
        conditions = _records(status.get("conditions"))
        agent = Row(
            node=_text(_mapping(pod.get("spec")).get("nodeName")),
            namespace=_text(metadata.get("namespace")),
            pod=_text(metadata.get("name")),
            ready=any((c.get("type"), c.get("status")) == ("Ready", "True") for c in conditions),
            version=_text(_mapping(metadata.get("labels")).get("app.kubernetes.io/version")),
        )
        # A name that begins with a hyphen would be an option of kubectl; no server accepts it.
        names = (agent.node, agent.namespace, agent.pod)
        if status.get("phase") != "Running" or not all(map(_NODE_NAME.fullmatch, names)):
            continue
        if agent.node not in found or agent.ready:
            found[agent.node] = agent
    return found


def _nodes(kubectl: Kubectl) -> dict[str, str]:
    """Return the reason of a pause of each node that should have an agent, empty without one.

    :raises PluginError: kubectl fails.
    """
    text = kubectl.get("get", "nodes", "-l", _WANTED, "-o", f"go-template={_NODES}")
    pairs = (line.partition(" ") for line in text.splitlines())
    return {unquote_plus(name): unquote_plus(reason)[:_MOST_TEXT] for name, _, reason in pairs}


def status(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    """Print a line for each node, the worst first; 1: a node has no agent, or does not answer."""
    found = agents(kubectl)
    try:
        nodes = _nodes(kubectl)
    except PluginError as error:
        _say(f"nodes without an agent are not listed: {error}")
        nodes = {}
    names = {*found, *nodes}
    if arguments.nodes:
        names = set(arguments.nodes)
        if unknown := names - found.keys() - nodes.keys():
            raise PluginError(f"no node {sorted(unknown)[0]!a}; see 'kubectl get nodes'", WRONG)
    elif not found:
        raise PluginError(f"no pod has the label {_LABEL}; is the chart installed there?")
    rows = [Row(each, error="no agent runs here") for each in names - found.keys()]
    rows += _asked(kubectl, [found[each] for each in names if each in found], arguments)
    rows = [replace(each, pause_reason=nodes.get(each.node, "")) for each in rows]
    rows.sort(key=Row.badness)
    if arguments.output == "json":
        print(json.dumps([asdict(each) for each in rows], indent=2))
    else:
        for line in _table(rows):
            print(line)
    return FAILED if any(each.error for each in rows) else DONE


def _asked(kubectl: Kubectl, wanted: Sequence[Row], arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of the agents as they answer, with progress on a terminal."""
    shown = sys.stderr.isatty() and len(wanted) > 1
    with ThreadPoolExecutor(arguments.parallel) as pool:
        try:
            asked = [pool.submit(_ask, kubectl, each, arguments.timeout) for each in wanted]
            for number, each in enumerate(as_completed(asked), 1):
                if shown:
                    print(f"\r{number} of {len(wanted)} nodes", end="", file=sys.stderr, flush=True)
                yield each.result()
        except BaseException:
            kubectl.stop()  # the threads end with their kubectl
            raise
        finally:
            if shown:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _ask(kubectl: Kubectl, agent: Row, timeout_s: float) -> Row:
    output, problem = kubectl.ask(_inside(agent, ["status", "--json"]), timeout_s)
    page = {} if problem else _parsed(output)
    if page.get("source") == "agent":
        # Its knobs would be most of the output about a large cluster.
        shown = {key: value for key, value in page.items() if key != "knobs"}
        return replace(agent, status=shown)
    # It may have found only the journal, and says why.
    notes = replace(agent, status=page).texts("notes") or ["its answer is none of an agent"]
    return replace(agent, error=problem or notes[0])


def _inside(agent: Row, words: Iterable[str]) -> list[str]:
    return ["exec", "-n", agent.namespace, agent.pod, "-c", "agent", "--", _AGENT, *words]


def _table(rows: Sequence[Row]) -> Iterator[str]:
    cells = [["NODE", "AGENT", "VERSION", "MODE", "LIMITED", "WORST SERVICE", "NOTES"]]
    cells += [[printable(each) or "-" for each in _cells(row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for texts in cells:
        yield "  ".join(text.ljust(width) for text, width in zip(texts, widths)).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    page, worst = row.status or {}, row.worst
    reason = f" ({row.pause_reason})" if row.pause_reason else ""
    notes = [*(f"{each}{reason}" for each in row.texts("paused")), *row.texts("problems")]
    names = [_text(worst.get(each)) for each in ("service", "indicator", "value", "sweet_point")]
    limited = str(len(_records(page.get("limited")))) if page else ""
    limited += f" of {page['best_effort']}"[:_MOST_NUMBER] if page.get("best_effort") else ""
    return (
        row.node,
        {None: "", True: "ready", False: "not ready"}[row.ready],
        row.version,
        _text(page.get("mode")),
        limited,
        f"{names[0]} {names[1]} {names[2]} of {names[3]} ({_ratio(worst):.2f} times)"
        if worst
        else "",
        row.error or "; ".join(notes),
    )


def inside(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    """Run the agent's own command in its pod and print its output, made printable."""
    agent = agents(kubectl, arguments.node).get(arguments.node)
    if agent is None:
        raise PluginError(
            f"no agent runs on node {arguments.node}: no running pod with the label {_LABEL}; "
            "see 'kubectl sweetpoint status'"
        )
    process = kubectl.start(_inside(agent, [arguments.command, *arguments.words]))
    try:
        assert process.stdout is not None and process.stderr is not None
        errors = threading.Thread(target=_copy, args=(process.stderr, sys.stderr), daemon=True)
        errors.start()
        _copy(process.stdout, sys.stdout)
        code = process.wait()
        errors.join()
    finally:
        kubectl.end(process)
    return code if code in (DONE, FAILED, WRONG, INTERRUPTED) else FAILED


def _copy(source: IO[bytes], target: IO[str]) -> None:
    """Print *source* as it comes; only its line breaks reach the terminal as they are."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    while data := os.read(source.fileno(), 1 << 16):
        lines = decoder.decode(data).replace("\r\n", "\n").expandtabs().split("\n")
        target.write("\n".join(map(printable, lines)))
        target.flush()


def pause(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    """Set the Node's annotation that pauses the agent, and one with the reason for people.

    The end is a time: a duration that is set again would be the same text, which the agent, after
    its end, takes for the pause that is over.
    """
    if not printable(arguments.reason) == arguments.reason or len(arguments.reason) > _MOST_TEXT:
        raise PluginError(f"--reason must be one line of at most {_MOST_TEXT} characters", WRONG)
    until = _end(arguments.duration)
    reason = f"{_REASON}={arguments.reason}" if arguments.reason else f"{_REASON}-"
    kubectl.get("annotate", "node", arguments.node, "--overwrite", f"{_PAUSE}={until}", reason)
    print(f"pause of {arguments.node} until {until}: everything")
    print(f"whether its agent has read it: 'kubectl sweetpoint status {arguments.node}'")
    return DONE


def _end(duration: str) -> str:
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise PluginError(f"--for {duration!a} is not a duration such as 30m, 4h or 2d", WRONG)
    length = timedelta(seconds=int(match[1]) * _SECONDS[match[2]])
    return (datetime.now(timezone.utc) + length).strftime("%Y-%m-%dT%H:%M:%SZ")


def resume(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    """Remove both annotations."""
    kubectl.get("annotate", "node", arguments.node, f"{_PAUSE}-", f"{_REASON}-")
    print(f"the pause by annotation of {arguments.node} ends; one set on the node itself stays")
    return DONE


def _parsed(text: str) -> Mapping[str, Any]:
    """Return the JSON object in *text*; an empty one if there is none."""
    try:
        # Python's reader takes NaN, which no other would take from the output of status.
        return _mapping(json.loads(text, parse_constant=lambda _: None))
    except (ValueError, RecursionError):
        return {}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _records(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value[:_MOST_TEXT] if isinstance(value, str) else ""


def _ratio(worst: Mapping[str, Any]) -> float:
    """Return value / sweet point; 0 if it is not known."""
    value = worst.get("ratio")
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e30 else 0.0


def _say(text: str) -> None:
    print(f"kubectl sweetpoint: {text}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _say(f"{printable(message)}; see '{self.prog} --help'")
        self.exit(WRONG)


def _node(text: str) -> str:
    if not _NODE_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!a} is not the name of a node")
    return text


def _up_to(most: int, kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not 0 < kind(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!a} is not above 0 and at most {most}")
        return kind(text)

    parse.__name__ = "number"  # for the message about a text that is none
    return parse


# What the agent's own commands are for; their options are shown by NODE --help.
_INSIDE = {
    "top": "watch services, best-effort work and decisions of a node",
    "explain": "say when and why a workload of a node was limited, or a service suffered",
    "doctor": "report what a node supports, what is missing and how to get it",
    "trial": "find out on a node what the agent gives and costs",
}


_COMMANDS = {"status": status, "pause": pause, "resume": resume}


def _parser() -> argparse.ArgumentParser:
    cluster = _Parser(add_help=False)
    for option in ("--context", "--kubeconfig"):
        cluster.add_argument(option, metavar="X", help="as for kubectl")
    cluster.add_argument("-n", "--namespace", help="that of the agents (default: any)")
    parser = _Parser(prog="kubectl sweetpoint", description="The sweetpoint agents of a cluster.")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")

    def added(name: str, sentence: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=sentence, description=sentence, parents=[cluster])
        if name != "status":
            found.add_argument("node", type=_node, metavar="NODE")
        return found

    add = added("status", "say how all nodes are, one line each, the worst first").add_argument
    add("nodes", type=_node, nargs="*", metavar="NODE", help="only these nodes")
    add("-o", "--output", choices=("text", "json"), default="text")
    add("--timeout", type=_up_to(86_400, float), default=20.0, metavar="SECONDS", help="per node")
    add("--parallel", type=_up_to(256, int), default=16, metavar="N", help="nodes at a time")
    add = added("pause", "have the agent of a node give everything back for a while").add_argument
    add("--for", dest="duration", default="30m", help="such as 4h; default: %(default)s")
    add("--reason", default="", metavar="TEXT", help="for people, shown by status")
    added("resume", "end the pause that 'pause' has set")
    for name, sentence in _INSIDE.items():
        add = added(name, f"{sentence}; what follows NODE is for 'sweetpoint {name}'").add_argument
        add("words", nargs=argparse.REMAINDER, metavar="...")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command: 0 done, 1 failed, 2 wrong use, 130 interrupted."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    arguments = _parser().parse_args(argv)
    given = ((name, getattr(arguments, name)) for name in ("context", "kubeconfig"))
    kubectl = Kubectl([f"--{name}={value}" for name, value in given if value], arguments.namespace)
    try:
        code = _COMMANDS.get(arguments.command, inside)(kubectl, arguments)
        sys.stdout.flush()
    except PluginError as error:
        _say(str(error))
        return error.code
    except BrokenPipeError:
        # The reader has seen what it wanted; what is left must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        kubectl.stop()
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
