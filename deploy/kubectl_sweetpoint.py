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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
import json
import math
import os
import random
import re
import selectors
from statistics import median
import subprocess
import sys
import tempfile
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
_NO_AGENT = "no agent runs here"
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

    def start(self, arguments: Sequence[str], text: bytes = b"") -> subprocess.Popen[bytes]:
        """Start kubectl with pipes for its output, and with *text* as its input.

        :raises PluginError: it cannot be started.
        """
        # Ctrl-C interrupts only the main thread: there it could come before the process is noted.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._start, arguments, text).result()

    def _start(self, arguments: Sequence[str], text: bytes) -> subprocess.Popen[bytes]:
        command, pipe = [*self._command, *arguments], subprocess.PIPE
        with self._lock, _input(text) as given:
            if self._stopped:
                raise PluginError("interrupted", INTERRUPTED)
            try:
                process = subprocess.Popen(command, stdin=given, stdout=pipe, stderr=pipe)
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
        self,
        arguments: Sequence[str],
        timeout_s: float,
        most_bytes: int = _MOST_BYTES,
        text: bytes = b"",
    ) -> tuple[str, str]:
        """Return what kubectl prints, and why that is not all; empty if it is."""
        with self.start(arguments, text) as process:
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


def _input(text: bytes) -> IO[bytes]:
    """Return a file with *text* at its begin.

    :raises PluginError: it cannot be made.
    """
    try:
        file = tempfile.TemporaryFile() if text else open(os.devnull, "w+b")  # noqa: PTH123, SIM115
        file.write(text)
        file.seek(0)
    except OSError as error:
        raise PluginError(f"no temporary file can be made: {error.strerror}") from None
    return file


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


def _nodes(kubectl: Kubectl, selector: str = "") -> dict[str, str]:
    """Return the reason of a pause of each node that should have an agent, empty without one.

    :param selector: only nodes with these labels.
    :raises PluginError: kubectl fails.
    """
    labels = ",".join(filter(None, (selector, _WANTED)))
    text = kubectl.get("get", "nodes", "-l", labels, "-o", f"go-template={_NODES}")
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
    rows = [Row(each, error=_NO_AGENT) for each in names - found.keys()]
    running = [found[each] for each in names if each in found]
    rows += _asked(kubectl, running, arguments, lambda each: _ask(kubectl, each, arguments.timeout))
    rows = [replace(each, pause_reason=nodes.get(each.node, "")) for each in rows]
    rows.sort(key=Row.badness)
    if arguments.output == "json":
        print(json.dumps([asdict(each) for each in rows], indent=2))
    else:
        for line in _table(rows):
            print(line)
    return FAILED if any(each.error for each in rows) else DONE


def _asked(
    kubectl: Kubectl,
    wanted: Sequence[Row],
    arguments: argparse.Namespace,
    ask: Callable[[Row], Row],
) -> Iterator[Row]:
    """Yield what *ask* makes of the agents as they answer, with progress on a terminal."""
    shown = sys.stderr.isatty() and len(wanted) > 1
    with ThreadPoolExecutor(arguments.parallel) as pool:
        try:
            asked = [pool.submit(ask, each) for each in wanted]
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
    return _columns([*cells, *map(_cells, rows)])


def _columns(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    cells = [[printable(each) or "-" for each in row] for row in rows]
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


# A trial on the nodes of a pool. Each node makes its own trial and its own findings, which are
# hostile text as all that a node says. The medians over nodes are made here, where no node has a
# hand in them.
_TRIAL = ("--for", "--block", "--washout", "--paused", "--most-harm", "--policy")
_STOP, _RUNNING = ("trial", "--stop"), "running"
_MOST_FILE, _MOST_LABEL, _MOST_NAME, _MOST_PAIRS = 1 << 16, 64, 128, 1_000_000
_MOST_FINDINGS, _MOST_EFFECTS, _SHOWN = 8192, 512, 20
# As controller/trial/analysis.py names and judges an outcome.
_TIME, _WORK, _COUNT = "time", "work", "count"
# What an effect can be at most: points, the logarithm of a ratio of work, pods an hour.
_MOST_EFFECT = {_TIME: 1, _WORK: 14, _COUNT: 1e6}
_BETTER, _WORSE, _NONE = "better", "worse", "no difference shown"
_NO_DIFFERENCE = 0.005
# Of three nodes, one that lies is in the minority.
_LEAST_NODES, _LEAST_PAIRS, _MOST_HURT = 3, 3, 2
_DRAWS, _CUT = 1000, 25
# A look without an answer says nothing about the trials, and a command to end them may be lost.
_SILENT_LOOKS, _MOST_STOPS = 10, 10

# Middle, lowest, highest: a difference, or the logarithm of a ratio.
_Effect = tuple[float, float, float]


@dataclass(frozen=True)
class Member:
    """The trial of a node as the node tells it; ``error``: why it tells nothing.

    ``effects`` are those of services and of best-effort work, by kind and name. ``hurt`` is the arm
    that hurt a service, ``ended`` why the trial ended before its time.
    """

    node: str
    error: str = ""
    state: str = ""
    label: str = ""
    compared: str = ""
    seed: int = 0
    pairs: int = 0
    of: int = 0
    hurt: str = ""
    ended: str = ""
    arms: str = ""
    effects: Mapping[tuple[str, str], _Effect] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether its trial goes on."""
        return self.state == _RUNNING

    def why_left_out(self, label: str, compared: str) -> str:
        """Return why it does not count for the pool, empty if it does."""
        if self.error:
            return self.error
        if self.label != label:
            return f"its last trial is another one ({self.label or 'without a label'})"
        if self.hurt:
            return f"a service was hurt: {self.ended}"
        if self.state == "killed":
            return "its trial was killed; was the agent's pod started again?"
        if self.ended not in ("", "interrupted"):
            return f"ended early: {self.ended}"
        if self.pairs < _LEAST_PAIRS:
            return f"fewer than {_LEAST_PAIRS} pairs"
        return "" if self.compared == compared else "another configuration than most"


@dataclass(frozen=True)
class Pooled:
    """An outcome over ``nodes``: the median of their effects, its interval, and the verdict."""

    kind: str
    name: str
    nodes: int
    effect: _Effect
    verdict: str


@dataclass(frozen=True)
class Pool:
    """The trials of the pool: those that count, and why the others are left out."""

    label: str
    counted: Sequence[Member]
    left_out: Mapping[str, str]
    hurt: Sequence[str]
    pooled: Sequence[Pooled]


def _member(row: Row) -> Member:
    """Return what the node of *row* says about its trial, checked and bounded."""
    if row.error:
        return Member(row.node, error=row.error)
    page = row.status or {}
    trial, arms = _mapping(page.get("trial")), _mapping(page.get("arms"))
    try:
        return Member(
            node=row.node,
            state=_text(trial.get("state")),
            label=_label(trial.get("label")),
            compared=_text(trial.get("compared"))[:_MOST_LABEL],
            seed=_whole(trial.get("seed"), 1 << 64),
            pairs=_whole(trial.get("pairs"), _MOST_PAIRS),
            of=_whole(trial.get("of"), _MOST_PAIRS),
            hurt=_text(trial.get("hurt"))[:_MOST_NUMBER],
            ended=_text(page.get("ended")),
            arms=" and ".join(_text(arms.get(each))[:_MOST_NAME] for each in ("enforce", "pause")),
            effects=_effects(_records(page.get("findings"))),
        )
    except (ValueError, OverflowError):
        return Member(row.node, error="its figures are none that can be measured")


def _label(value: object) -> str:
    """Return a label, which is a word of a command later; empty if it cannot be one."""
    text = _text(value)[:_MOST_LABEL]
    return text if text.isprintable() else ""


def _effects(findings: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], _Effect]:
    """Return the effects of *findings*; one without an interval is left out.

    :raises ValueError: too many, or a figure that no trial can have.
    """
    if len(findings) > _MOST_FINDINGS:
        raise ValueError("too many")
    found = {}
    for each in findings:
        kind, values = _text(each.get("kind")), each.get("effect")
        if kind not in _MOST_EFFECT or not isinstance(values, list) or None in values:
            continue
        middle, low, high = map(_real, values)
        if kind == _WORK:
            # A log of what rounding has made zero; no ratio of work is as extreme.
            middle, low, high = (math.log(max(value, 1e-9)) for value in (middle, low, high))
        if not low <= middle <= high or abs(middle) > _MOST_EFFECT[kind]:
            raise ValueError("not an effect")
        found[kind, _text(each.get("name"))[:_MOST_NAME]] = middle, low, high
        if len(found) > _MOST_EFFECTS:
            raise ValueError("too many")
    return found


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e6 < value < 1e6:
        raise ValueError("not a number")
    return float(value)


def _whole(value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("not a number")
    return value


def pool_of(members: Sequence[Member], label: str = "") -> Pool:
    """Return the pool's trial in those of its *members*: what most of them have counts.

    :param label: that of the trial; without it, the one that most members have.
    """
    label = label or _most([each.label for each in members if each.label])
    compared = _most([each.compared for each in members if each.label == label and each.compared])
    reasons = {each.node: each.why_left_out(label, compared) for each in members}
    counted = [each for each in members if not reasons[each.node]]
    hurt = _hurt(members, label)
    return Pool(
        label=label,
        counted=counted,
        left_out={node: why for node, why in reasons.items() if why},
        hurt=hurt,
        pooled=_pooled(counted, len(hurt)),
    )


def _hurt(members: Iterable[Member], label: str) -> list[str]:
    return [each.node for each in members if each.hurt and each.label == label]


def _label_that_runs(members: Sequence[Member]) -> str:
    """Return the most frequent label of those of trials that run; of all labels if none runs.

    Ended trials count, too: a node that claims a label of its own does not win over several.
    """
    labels = [each.label for each in members if each.label]
    running = {each.label for each in members if each.runs}
    return _most([each for each in labels if each in running] or labels)


def _most(values: Sequence[str]) -> str:
    """Return the most frequent of *values*; of several the last in order, which is the newest."""
    counts = Counter(values)
    return max(counts, key=lambda each: (counts[each], each), default="")


def _pooled(members: Sequence[Member], hurt: int) -> list[Pooled]:
    """Return the outcomes that enough of *members* have, services first."""
    keys = sorted({key for each in members for key in each.effects})
    found = []
    for kind, name in keys:
        effects = [each.effects[kind, name] for each in members if (kind, name) in each.effects]
        if len(effects) < _LEAST_NODES:
            continue
        effect = median_effect(effects)
        verdict = _verdict(kind, effect) if hurt < _MOST_HURT else "no verdict"
        found.append(Pooled(kind, name, len(effects), effect, verdict))
    return found


def median_effect(effects: Sequence[_Effect]) -> _Effect:
    """Return the median of *effects* and its 95 % interval.

    Each effect is drawn anew within its own interval, a thousand times. The lower end is that of
    the drawn effect below the median, the upper end that of the one above it. So a single node
    that claims anything cannot move the interval away from the effects of the others.
    """
    numbers = random.Random(0)  # noqa: S311 - the same report twice
    spread = [(middle, (high - low) / (2 * 1.96)) for middle, low, high in effects]
    last = len(effects) - 1
    below, above = max(0, last // 2 - 1), min(last, (last + 1) // 2 + 1)
    drawn = [sorted(numbers.gauss(*each) for each in spread) for _ in range(_DRAWS)]
    low = sorted(each[below] for each in drawn)[_CUT - 1]
    high = sorted(each[above] for each in drawn)[-_CUT]
    middle = median(effect[0] for effect in effects)
    return middle, min(middle, low), max(middle, high)


def _verdict(kind: str, effect: _Effect) -> str:
    middle, low, high = effect
    if low <= 0 <= high or abs(middle) < _NO_DIFFERENCE:
        return _NONE
    return _BETTER if (middle < 0) is (kind == _TIME) else _WORSE


def pool(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    """Run a verb of a trial on the nodes of a pool: 1: not all of them did or counted."""
    try:
        return _VERBS[arguments.node](kubectl, arguments)
    except KeyboardInterrupt:
        _say("trials that began go on; 'kubectl sweetpoint trial stop' ends them")
        raise


def _pool_start(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    label = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    words = ["trial", "--background", "--json", f"--label={label}"]
    # As one word each: a value that begins with a hyphen is none of another option.
    values = vars(arguments)
    given = ((option, values[option[2:].replace("-", "_")]) for option in _TRIAL)
    words += [f"{option}={value}" for option, value in given if value is not None]
    text = b""
    if arguments.against is not None:
        text = _file(arguments.against)
        words.append("--against=-")
    rows = _on_each(kubectl, arguments, words, text)
    for each in rows:
        _tell(arguments, f"{each.node}: {_begun(each)}")
    ran = {each.node for each in rows if not each.error}
    unsure = {each.node for each in rows if _says_nothing(each.error)}
    _tell(arguments, f"trial {label} on {len(ran)} of {len(rows)} nodes")
    if arguments.watch and (ran or unsure):
        return _watch(kubectl, arguments, Watch(label, ran, unsure))
    if ran or unsure:
        _tell(
            arguments,
            f"nobody watches: with {_MOST_HURT} hurt nodes the others go on; "
            "'kubectl sweetpoint trial status --watch' ends them",
        )
    if arguments.output == "json":
        nodes = [
            {
                "node": each.node,
                "begun": None if _says_nothing(each.error) else not each.error,
                "error": each.error,
            }
            for each in rows
        ]
        print(json.dumps({"label": label, "nodes": nodes}, indent=2))
    return DONE if len(ran) == len(rows) else FAILED


def _begun(row: Row) -> str:
    """Return how the begin of a trial went on the node of *row*."""
    if row.error:
        return f"{'may have begun' if _says_nothing(row.error) else 'not begun'}: {row.error}"
    said = row.status or {}
    return f"{said.get('pairs')!a:.20} pairs, order {said.get('seed')!a:.20}"


def _says_nothing(error: str) -> bool:
    """Return whether a trial may run on a node that was asked with this *error*.

    What the agent's own command refuses has its name before it.
    """
    return bool(error) and error != _NO_AGENT and not error.startswith("sweetpoint")


def _tell(arguments: argparse.Namespace, text: str) -> None:
    """Print *text* for people, where it is not in the way of JSON."""
    target = sys.stderr if arguments.output == "json" else sys.stdout
    print(printable(text), file=target, flush=True)


def _file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a word of the command line
            text = file.read(_MOST_FILE + 1)
    except OSError as error:
        raise PluginError(f"--against {path!a}: {error.strerror}", WRONG) from None
    if not text or len(text) > _MOST_FILE:
        raise PluginError(f"--against {path!a}: empty, or longer than {_MOST_FILE} bytes", WRONG)
    return text


def _on_each(
    kubectl: Kubectl,
    arguments: argparse.Namespace,
    words: Sequence[str],
    text: bytes = b"",
    only: Sequence[str] = (),
) -> list[Row]:
    """Return the rows of the pool by name, each with what the agent's command *words* prints.

    :param only: these nodes in place of the pool.
    :raises PluginError: kubectl fails, or no node is in the pool.
    """
    names = only or [*_nodes(kubectl, arguments.selector)]
    if not names:
        raise PluginError(f"no node has the labels {arguments.selector!a}", WRONG)
    found = agents(kubectl)

    def ask(agent: Row) -> Row:
        command = _inside(agent, words)
        if text:
            command.insert(command.index("-c"), "-i")
        try:
            output, problem = kubectl.ask(command, arguments.timeout, text=text)
        except PluginError as error:  # what the other nodes say is not lost
            output, problem = "", str(error)
        return replace(agent, error=problem, status=None if problem else _parsed(output))

    rows = [Row(each, error=_NO_AGENT) for each in names if each not in found]
    running = [found[each] for each in names if each in found]
    return sorted([*rows, *_asked(kubectl, running, arguments, ask)], key=lambda each: each.node)


def _look(kubectl: Kubectl, arguments: argparse.Namespace) -> list[Member]:
    """Return how the trials of the pool are.

    :raises PluginError: see ``_on_each``.
    """
    return [_member(each) for each in _on_each(kubectl, arguments, ["trial", "--latest", "--json"])]


def _pool_status(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    if arguments.watch:
        return _watch(kubectl, arguments, Watch())
    members = _look(kubectl, arguments)
    found = pool_of(members, _label_that_runs(members))
    if arguments.output == "json":
        rows = [{"left_out": found.left_out.get(each.node, ""), **_plain(each)} for each in members]
        print(json.dumps({"label": found.label, "hurt": found.hurt, "nodes": rows}, indent=2))
    else:
        _print_status(members, found)
    return FAILED if len(found.hurt) >= _MOST_HURT or any(each.error for each in members) else DONE


def _print_status(members: Sequence[Member], found: Pool) -> None:
    cells = [["NODE", "TRIAL", "PAIRS", "ORDER", "LEFT OUT"]]
    for each in members:
        pairs = "" if each.error else f"{each.pairs} of {each.of}"
        order = "" if each.error else str(each.seed)
        why = found.left_out.get(each.node, "")
        cells.append([each.node, each.state, pairs, order, why])
    for line in _columns(cells):
        print(line)
    run = any(each.runs and each.label == found.label for each in members)
    if run and len(found.hurt) >= _MOST_HURT:
        print(
            f"{len(found.hurt)} nodes were hurt ({_some(found.hurt)}): end the pool's trial with "
            "'kubectl sweetpoint trial stop', which 'trial status --watch' does by itself"
        )


class Watch:
    """What the looks at the trial of a pool have shown; it asks no node itself.

    ``members`` are those of the last look that listed nodes. An end that a node told stays there
    when the node does not answer later, and harm also when it leaves the pool. ``stops`` counts
    the tries to end the trials.

    :param label: that of the trial; without it, the one that most of those have that run.
    :param ran: nodes on which it has begun.
    :param unsure: nodes on which it may have begun; without it, those silent in the first look.
    """

    def __init__(
        self, label: str = "", ran: Iterable[str] = (), unsure: Iterable[str] | None = None
    ) -> None:
        self.label = label
        self.members: Sequence[Member] = []
        self.stops = 0
        self._is_fixed = bool(label)
        # The last answer of each node.
        self._told = {node: Member(node, state=_RUNNING, label=label) for node in ran}
        self._unsure = None if unsure is None else {*unsure}
        self._silent = 0

    def note(self, members: Sequence[Member]) -> None:
        """Take what a look shows; *members* are empty if the API server did not answer."""
        answers = {each.node: each for each in members if not each.error}
        silent = {each.node for each in members if _says_nothing(each.error)}
        refused = {each.node for each in members} - silent
        left = self._told.keys() - refused - silent
        self._told.update(answers)
        if members:
            self._unsure = (silent if self._unsure is None else self._unsure) - refused
            harm = [self._told[node] for node in sorted(left) if self._told[node].hurt]
            self.members = [*map(self._known, members), *harm]
        if not self._is_fixed:
            self.label = _label_that_runs([*self._told.values()])
            self._is_fixed = bool(self.running)
        seen = any(self._runs(each) for each in answers.values())
        self._silent = 0 if seen else self._silent + 1

    def _known(self, member: Member) -> Member:
        told = self._told.get(member.node, member)
        return member if told.runs else told

    def _runs(self, member: Member) -> bool:
        return member.runs and member.label == self.label

    @property
    def running(self) -> list[str]:
        """The nodes that run the trial by their last answer."""
        return sorted(node for node, each in self._told.items() if self._runs(each))

    @property
    def may_run(self) -> list[str]:
        """The nodes of which no end is known."""
        return sorted({*self.running, *(self._unsure or ())})

    @property
    def hurt(self) -> list[str]:
        """The nodes with a service that the trial has hurt."""
        return _hurt(self.members, self.label)

    @property
    def must_end(self) -> list[str]:
        """The nodes whose trials must end, because several nodes were hurt."""
        return self.running if len(self.hurt) >= _MOST_HURT else []

    @property
    def is_over(self) -> bool:
        """Whether the end of each trial is known."""
        return bool(self.members) and not self.may_run

    @property
    def gives_up(self) -> bool:
        """Whether more looks or commands would not help."""
        return self._silent >= _SILENT_LOOKS or self.stops >= _MOST_STOPS

    def progress(self) -> str:
        """Return a line for people, empty before nodes are known."""
        if not self.members:
            return ""
        own = [each for each in self.members if each.label == self.label and not each.error]
        running = f"{sum(map(self._runs, own))} of {len(self.members)} nodes run"
        pairs = f"{sum(each.pairs for each in own)} of {sum(each.of for each in own)} pairs"
        hurt = f"; hurt: {_some(self.hurt)}" if self.hurt else ""
        return f"{running}, {pairs}{hurt}"


def _watch(kubectl: Kubectl, arguments: argparse.Namespace, watch: Watch) -> int:
    """Look until no trial runs, and end the pool's trial if several nodes are hurt."""
    said = ""
    while True:
        _patient_look(kubectl, arguments, watch)
        if (now := watch.progress()) != said:
            _tell(arguments, now)
            said = now
        if watch.is_over or watch.gives_up:
            return _print_end(watch, arguments)
        if not watch.must_end or not _stop_all(kubectl, arguments, watch):
            time.sleep(arguments.interval)


def _patient_look(kubectl: Kubectl, arguments: argparse.Namespace, watch: Watch) -> None:
    """Have *watch* note how the trials are; nothing while the API server does not answer.

    :raises PluginError: no node is in the pool, and none is known where a trial may run.
    """
    try:
        watch.note(_look(kubectl, arguments))
    except PluginError as error:
        if error.code != FAILED and not watch.may_run:
            raise
        watch.note([])
        _say(f"{error}{'' if watch.gives_up else '; asked again'}")


def _stop_all(kubectl: Kubectl, arguments: argparse.Namespace, watch: Watch) -> bool:
    """Ask the nodes that run the trial of *watch* to end it; return whether all did."""
    if not watch.stops:
        _tell(arguments, f"{len(watch.hurt)} nodes were hurt: the pool's trial ends")
    watch.stops += 1
    try:
        words = (*_STOP, f"--label={watch.label}")
        rows = _on_each(kubectl, arguments, words, only=watch.must_end)
    except PluginError as error:
        _say(str(error))
        return False
    for each in rows:
        _tell(arguments, _stopped(each))
    return not any(each.error for each in rows)


def _print_end(watch: Watch, arguments: argparse.Namespace) -> int:
    code = _print_report(watch.members, arguments, watch.label)
    if watch.is_over:
        return code
    why = f"{len(watch.hurt)} nodes were hurt" if watch.must_end else "the watch gives up"
    _say(
        f"{why}, and the trial may still run on {_some(watch.may_run) or 'nodes of the pool'}; "
        "'kubectl sweetpoint trial status --watch' looks again, 'trial stop' ends it"
    )
    return FAILED


def _some(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(nodes[:_SHOWN]) + more


def _pool_stop(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    rows = _on_each(kubectl, arguments, _STOP)
    for each in rows:
        print(_stopped(each))
    return FAILED if any(each.error for each in rows) else DONE


def _stopped(row: Row) -> str:
    return printable(f"{row.node}: {row.error or 'no trial runs in the background now'}")


def _pool_report(kubectl: Kubectl, arguments: argparse.Namespace) -> int:
    return _print_report(_look(kubectl, arguments), arguments)


_VERBS = {
    "start": _pool_start,
    "status": _pool_status,
    "report": _pool_report,
    "stop": _pool_stop,
}


def _print_report(members: Sequence[Member], arguments: argparse.Namespace, label: str = "") -> int:
    """Print what the trials show; 1: fewer than three nodes count, or several were hurt.

    :param label: see ``pool_of``.
    """
    found = pool_of(members, label)
    if arguments.output == "json":
        print(json.dumps(_plain_report(found), indent=2))
    else:
        for line in _report(found):
            print(printable(line))
    bad = len(found.counted) < _LEAST_NODES or len(found.hurt) >= _MOST_HURT
    return FAILED if bad else DONE


def _report(found: Pool) -> Iterator[str]:
    """Yield the lines of the report: the pool, its nodes, and those that are left out."""
    nodes, pairs = len(found.counted), sum(each.pairs for each in found.counted)
    arms = _most([each.arms for each in found.counted])
    yield (
        f"trial {found.label or '-'} of {arms or '-'}: {nodes} nodes, {pairs} pairs; each line: "
        "median of the effects of nodes with its 95 % interval"
    )
    if len(found.hurt) >= _MOST_HURT:
        yield f"  no verdict, because {len(found.hurt)} nodes were hurt"
    elif nodes < _LEAST_NODES:
        yield f"  no verdict of fewer than {_LEAST_NODES} nodes"
    if running := sum(each.runs for each in found.counted):
        yield f"  {running} nodes still run; who ends early because of a verdict finds too many"
    shown = sorted(found.pooled, key=lambda each: (each.kind != _TIME, -abs(each.effect[0])))
    for each in shown[:_SHOWN]:
        figures = _figures(each.kind, each.effect)
        yield f"  {each.name}: {figures} on {each.nodes} nodes: {each.verdict}"
    if len(shown) > _SHOWN:
        yield f"  and {len(shown) - _SHOWN} more; see -o json"
    alone = {key for each in found.counted for key in each.effects} - {
        (each.kind, each.name) for each in found.pooled
    }
    if alone:
        yield f"  {len(alone)} outcomes are those of fewer than {_LEAST_NODES} nodes"
    for member in found.counted:
        largest = sorted(member.effects.items(), key=lambda each: -abs(each[1][0]))[:_LEAST_NODES]
        effects = "; ".join(f"{name} {_figures(kind, effect)}" for (kind, name), effect in largest)
        yield f"{member.node}: {member.pairs} pairs, order {member.seed}: {effects}"
    for node, why in sorted(found.left_out.items()):
        yield f"{node}: left out: {why}"


def _figures(kind: str, effect: _Effect) -> str:
    if kind == _TIME:
        middle, low, high = (100 * each for each in effect)
        return f"{middle:+.1f} points of the time above its sweet point [{low:+.1f}, {high:+.1f}]"
    if kind == _COUNT:
        middle, low, high = effect
        return f"{middle:+.4g} [{low:+.4g}, {high:+.4g}]"
    # An interval may be wider than any number.
    middle, low, high = (math.exp(max(-50.0, min(50.0, each))) for each in effect)
    return f"ratio {middle:.3f} [{low:.3f}, {high:.3f}]"


def _plain(member: Member) -> dict[str, Any]:
    left_out = ("effects", "error")
    return {key: value for key, value in vars(member).items() if key not in left_out}


def _plain_pooled(found: Pooled) -> dict[str, Any]:
    effect = [math.exp(each) if found.kind == _WORK else each for each in found.effect]
    return {**asdict(found), "effect": effect}


def _plain_report(found: Pool) -> dict[str, Any]:
    return {
        "label": found.label,
        "nodes": [_plain(each) for each in found.counted],
        "left_out": found.left_out,
        "hurt": found.hurt,
        "findings": [*map(_plain_pooled, found.pooled)],
    }


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
    "trial": "find out what the agent gives and costs on a node, or on a pool by --selector",
}


# The verbs of a trial, in place of a node.
_POOL = {
    "start": "begin a trial",
    "status": "say how the last trial goes on",
    "report": "say what the last trial shows",
    "stop": "end the trial; its pairs are kept,",
}


_OUTPUTS = ("text", "json")
_COMMANDS = {"status": status, "pause": pause, "resume": resume}


def _cluster() -> _Parser:
    cluster = _Parser(add_help=False)
    for option in ("--context", "--kubeconfig"):
        cluster.add_argument(option, metavar="X", help="as for kubectl")
    cluster.add_argument("-n", "--namespace", help="that of the agents (default: any)")
    return cluster


def _add_asking(add: Callable[..., object]) -> None:
    add("--timeout", type=_up_to(86_400, float), default=20.0, metavar="SECONDS", help="per node")
    add("--parallel", type=_up_to(256, int), default=16, metavar="N", help="nodes at a time")


def _pool_parser(verb: str) -> argparse.ArgumentParser:
    sentence = f"{_POOL[verb]} on each node of a pool"
    parser = _Parser(
        prog=f"kubectl sweetpoint trial {verb}", description=sentence, parents=[_cluster()]
    )
    add = parser.add_argument
    add("-l", "--selector", type=_selector, required=True, help="labels of the pool's nodes")
    if verb != "stop":
        add("-o", "--output", choices=_OUTPUTS, default="text", help="json: progress is on stderr")
    _add_asking(add)
    if verb == "start":
        for option in _TRIAL:
            add(option, metavar="X", help="as for 'sweetpoint trial'")
        add("--against", metavar="FILE", help="as for 'sweetpoint trial', a file of this host")
    if verb in ("start", "status"):
        goes_on = "look until all trials ended; end them when two nodes are hurt"
        watched = verb == "start"
        add("--watch", action=argparse.BooleanOptionalAction, default=watched, help=goes_on)
        every = "between two looks"
        add("--interval", type=_up_to(3600, float), default=30.0, metavar="SECONDS", help=every)
    return parser


def _selector(text: str) -> str:
    if not text.strip(", ") or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!a} is not a selector such as pool=batch")
    return text


def _parser() -> argparse.ArgumentParser:
    cluster = _cluster()
    parser = _Parser(prog="kubectl sweetpoint", description="The sweetpoint agents of a cluster.")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")

    def added(name: str, sentence: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=sentence, description=sentence, parents=[cluster])
        if name != "status":
            found.add_argument("node", type=_node, metavar="NODE")
        return found

    add = added("status", "say how all nodes are, one line each, the worst first").add_argument
    add("nodes", type=_node, nargs="*", metavar="NODE", help="only these nodes")
    add("-o", "--output", choices=_OUTPUTS, default="text")
    _add_asking(add)
    add = added("pause", "have the agent of a node give everything back for a while").add_argument
    add("--for", dest="duration", default="30m", help="such as 4h; default: %(default)s")
    add("--reason", default="", metavar="TEXT", help="for people, shown by status")
    added("resume", "end the pause that 'pause' has set")
    for name, sentence in _INSIDE.items():
        follows = f"what follows NODE is for 'sweetpoint {name}'"
        if name == "trial":
            follows += f"; for a pool: {', '.join(_POOL)} in place of NODE"
        add = added(name, f"{sentence}; {follows}").add_argument
        add("words", nargs=argparse.REMAINDER, metavar="...")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command: 0 done, 1 failed, 2 wrong use, 130 interrupted."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    arguments = _parser().parse_args(argv)
    command = _COMMANDS.get(arguments.command, inside)
    if arguments.command == "trial" and arguments.node in _POOL:
        arguments = _pool_parser(arguments.node).parse_args(arguments.words, arguments)
        command = pool
    given = ((name, getattr(arguments, name)) for name in ("context", "kubeconfig"))
    kubectl = Kubectl([f"--{name}={value}" for name, value in given if value], arguments.namespace)
    try:
        code = command(kubectl, arguments)
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
