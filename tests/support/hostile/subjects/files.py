# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Files that the agent reads: configuration, profile, record of the journal."""

from collections.abc import Iterator, Mapping
import contextlib
import json
from pathlib import Path
from random import Random
import re
import tempfile
import zlib

from actuators.journal import Journal, Record
from controller.config.load import Config, ConfigError, load
from controller.config.yaml_document import parse_document
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.facts import boot_id
from tests.support.hostile.mutations import mutated_bytes, mutated_tree
from tests.support.hostile.subjects.subject import Check, Subject

__all__ = ("CONFIG", "PROFILE", "SUBJECTS")

CONFIG = b"""\
mode: enforce
tick: 100ms
state_dir: /run/sweetpoint
http: "[::1]:9000"
http_token_file: /etc/sweetpoint/token
reserve: 250mcpu
safe_state: floor
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive, profile: mine, service: shop}
  - name: batch
    cgroup: /batch/*/
    class: best-effort
    core_group: one
profiles: [mine.yaml]
service_level:
  services:
    shop:
      prometheus:
        url: https://prometheus.example:9090
        query: histogram_quantile(0.99, sum(rate(request_seconds_bucket[30s])) by (le))
        token_file: /etc/sweetpoint/prometheus.token
        ca_file: /etc/sweetpoint/ca.pem
      timeout: 2s
    web:
      metrics: {url: "http://127.0.0.1:80/m", metric: p99, labels: {a: b}, header_files: {X-A: /b}}
      unit: ms
    other: {json: {url: "http://[::1]/", pointer: /a/0}}
    pushed: {push: {users: [web, 1000]}}
network:
  devices:
    - name: eth1
      egress: 10gbit
      ingress: off
      tiers: {best-effort: {guaranteed: 100mbit, max: {egress: 5gbit, ingress: 2gbit}}}
  limits:
    - {workload: batch, egress: 100mbit}
  pod_limits: 4
  mark_mask: 0xf0
resctrl: {group: sweetpoint-be, rmid_reserve: 2}
io: {disks: {/dev/sda: {read: 500MB/s, write: 400MB/s}}}
core_scheduling: {mode: auto, overlap: 10%, verify: 30s}
counters: {cycles: msr/tsc/, instructions: auto}
budget: {cpu: 300mcpu, memory: 200MiB}
eviction: {standalone: freeze, freeze_for: 10m, per_hour: 3, cool_down: 60s}
kubernetes:
  node: one
  kubeconfig: /etc/kubeconfig
  system_namespaces: [kube-system]
  trusted_namespaces: [shop]
  cgroup_roots: [/kubepods]
  eviction: {enabled: true, mark: NoSchedule, mark_for: 5m}
  service_profiles: trusted
  profiles:
    config_map: sweetpoint-profiles
    namespace: kube-system
    default: default
    rules:
      - {profile: gold, namespace: shop, service_account: checkout}
      - {profile: redis, labels: {tier: cache}}
    allow: {gold: [shop, bank]}
  capacity: {enabled: true, cpu_reserve: 10%, peak_over: 10m}
"""
PROFILE = b"""\
name: mine
description: all fields
indicators:
  runq_p99: {sweet_point: 3ms, tolerance: 3, resolution: 20us, dead_zone: 0.2, window: 2s,
             filter: 1s, min_samples: 5, channel: cpu, gains: {kp: 0.5, ti: 2s, td: 100ms}}
  cpi: {sweet_point: 1.2, bins: [{above: 2cpu, sweet_point: 1.4}], gains: auto}
  service: {sweet_point: 20ms}
  psi_memory: {sweet_point: 10%}
sched_idle: false
be_share_min: 0.3
idle_below: 1%
channels: [cpu, cache]
cpu_burst: 10ms
knobs:
  cpu.quota: {floor: 100mcpu, squeeze: 1/s, release_step: 0.2, release_spacing: 10s}
  resctrl.l3: {floor: 2}
  memory.high:
    floor: 64MiB
evict: {enabled: true, after: 2m}
"""
RECORD = Record(
    Target(TargetKind.CGROUP, "cpu", 7, "/be/ä"),
    Knob.CPU_QUOTA,
    original=KnobValue("max 100000 0"),
    previous=KnobValue("max 100000 0"),
    intended=KnobValue("5000 10000 0"),
)

# Problems below the level of fields: the syntax of YAML, and what the files do not use of it.
SYNTAX = re.compile(
    r"(not YAML|not UTF-8 text|not a text file): ?|(aliases|anchors|tags) \(.*\) are not supported"
    r"|more than one YAML document|nested deeper than|a key must be text|must be a mapping"
)
FIELD = re.compile(r'((^|\.)[A-Za-z_]\w*|\[[0-9]+\]|\["([^"\\]|\\.)*"\])+: .', re.ASCII)


def as_yaml(random: Random, raw: bytes) -> bytes:
    """Return *raw* with mutated text, or with mutated values."""
    if random.random() < 0.5:
        return mutated_bytes(random, raw)
    try:
        data = parse_document(raw.decode(), "").data
    except (ConfigError, UnicodeDecodeError):
        return mutated_bytes(random, raw)
    return json.dumps(mutated_tree(random, data), indent=random.choice((None, 1))).encode()


@contextlib.contextmanager
def configs(home: Path) -> Iterator[Check]:
    """Load it, with a valid profile."""
    (home / "mine.yaml").write_bytes(PROFILE)
    yield lambda raw: check_load(home, "config.yaml", raw)


@contextlib.contextmanager
def profiles(home: Path) -> Iterator[Check]:
    """Load it with a valid configuration."""
    (home / "config.yaml").write_bytes(CONFIG)
    yield lambda raw: check_load(home, "mine.yaml", raw)


def check_load(home: Path, name: str, raw: bytes) -> None:
    (home / name).write_bytes(raw)
    try:
        assert isinstance(load(home / "config.yaml", cpus=4), Config)
    except ConfigError as error:
        assert 0 < len(error.problems) <= 21
        for problem in error.problems[:20]:
            check_problem(home, problem)


def check_problem(home: Path, problem: str) -> None:
    assert problem.isprintable()
    assert len(problem) <= 400
    if match := re.match(rf"{home}/(config|mine)\.yaml:([0-9]+): ", problem):
        text = (home / f"{match[1]}.yaml").read_text("utf-8", "replace")
        assert 1 <= int(match[2]) <= len(text.splitlines()) + 1
        rest = problem[match.end() :]
        assert SYNTAX.match(rest) or FIELD.match(rest) or len(problem) == 400
    else:
        # An empty file has no line; a mutated name of a profile leads to another file.
        empty = rf"{home}/(config|mine)\.yaml: the file is empty"
        assert re.fullmatch(empty, problem) or re.match(rf"{home}/.+:[0-9]+: ", problem)


@contextlib.contextmanager
def records(home: Path) -> Iterator[Check]:
    """Start with it in the journal."""
    Journal(home).put(RECORD)
    (path,) = home.iterdir()

    def check(raw: bytes) -> None:
        for old in home.iterdir():
            old.unlink()
        path.write_bytes(raw)
        journal = Journal(home)
        left = list(home.iterdir())
        if not left:
            assert json.loads(raw)["boot_id"] != boot_id()
            return
        assert [each.read_bytes() for each in left] == [raw], "the file has changed"
        if journal.records:
            check_record(journal, raw)
        else:
            assert list(journal.kept) == left
            assert journal.is_kept(RECORD.target, RECORD.knob)
        # The next start comes to the same result.
        assert (Journal(home).records, list(Journal(home).kept)) == (
            journal.records,
            list(journal.kept),
        )

    yield check


def mutated_record(random: Random, raw: bytes) -> bytes:
    """Return the record *raw* with mutated text, or with mutated values and a valid checksum."""
    if random.random() < 0.5:
        return mutated_bytes(random, raw)
    try:
        tree = json.loads(raw)
    except (ValueError, RecursionError):
        return mutated_bytes(random, raw)
    if isinstance(tree, dict):
        tree.pop("crc", None)
    fields = mutated_tree(random, tree)
    crc = zlib.crc32(json.dumps(fields, sort_keys=True).encode())
    return json.dumps(fields | {"crc": crc} if isinstance(fields, dict) else fields).encode()


def check_record(journal: Journal, raw: bytes) -> None:
    fields = json.loads(raw)
    (record,) = journal.records
    assert [fields[key] for key in ("kind", "scope", "id", "path")] == list(record.target)
    assert fields["knob"] == record.knob
    values = [record.original, record.previous, record.intended]
    assert [fields[key] for key in ("original", "previous", "intended")] == values
    # Otherwise the file outlives its record, and the original is restored a second time.
    journal.remove(record)
    assert not list(journal.directory.iterdir())


def record_example() -> bytes:
    with tempfile.TemporaryDirectory() as home:
        Journal(Path(home)).put(RECORD)
        (path,) = Path(home).iterdir()
        return path.read_bytes()


SUBJECTS: Mapping[str, Subject] = {
    "config": Subject(examples=(CONFIG,), mutate=as_yaml, open=configs),
    "profile": Subject(examples=(PROFILE,), mutate=as_yaml, open=profiles),
    "record": Subject(examples=(record_example(),), mutate=mutated_record, open=records),
}
