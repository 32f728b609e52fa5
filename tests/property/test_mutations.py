# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Mutated files, API objects and journal records are used, or refused in the documented way."""

from concurrent.futures import ProcessPoolExecutor
import json
from multiprocessing import get_context
from pathlib import Path
from random import Random
import re
import tempfile
from typing import Any
import zlib

import pytest

from actuators.journal import Journal, Record
from controller.config.load import Config, ConfigError, load
from controller.config.yaml_document import parse_document
from controller.core.model import Knob, KnobValue, QosClass, Target, TargetKind
from controller.host.facts import boot_id
from controller.workloads.pods.descriptor import (
    Descriptor,
    DescriptorError,
    derived_profile,
    parse_descriptor,
)
from controller.workloads.pods.pod import Pod, PodError, parse_pod
from controller.workloads.pods.requests import network_limit
from tests.mutations import mutated_bytes, mutated_tree
from tests.pods import UID, profiles

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
POD: dict[str, Any] = {
    "metadata": {
        "uid": UID,
        "namespace": "shop",
        "name": "web-7c9-x2x",
        "labels": {"app": "web", "sweetpoint.dev/class": "best-effort", "pod-template-hash": "7c9"},
        "annotations": {
            "kubernetes.io/config.hash": "ab" * 16,
            "kubernetes.io/config.mirror": "ab" * 16,
            "koordinator.sh/networkQOS": '{"ingressLimit": "10M", "egressLimit": "20M"}',
        },
        "ownerReferences": [{"controller": True, "kind": "ReplicaSet", "name": "web-7c9"}],
        "deletionTimestamp": None,
    },
    "spec": {
        "priority": 0,
        "serviceAccountName": "web",
        "terminationGracePeriodSeconds": 30,
        "containers": [
            {
                "image": "registry:5000/shop/nginx:1.27@sha256:ab",
                "resources": {
                    "requests": {"cpu": "1", "memory": "1Gi"},
                    "limits": {"cpu": "1", "sweetpoint.dev/cpu": "1500"},
                },
            }
        ],
        "initContainers": [{"restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}],
    },
    "status": {"phase": "Running"},
}
DESCRIPTOR: dict[str, Any] = {
    "metadata": {"namespace": "shop", "name": "web"},
    "spec": {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "systemIndicator": [
            {
                "name": "cpi",
                "indicators": [
                    {"indicatorLevel": "UpperBound", "value": 1.4},
                    {"indicatorLevel": "LowerBound", "value": 1.2},
                ],
            },
            {
                "name": "cpu_sched_wait",
                "indicators": [{"indicatorLevel": "UpperBound", "value": 460}],
            },
            {"name": "cpu_usage_ratio", "indicators": []},
        ],
    },
}
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
    tree = mutated_tree(random, parse_document(raw.decode(), "").data)
    return json.dumps(tree, indent=random.choice((None, 1))).encode()


def mutate_config(random: Random, home: Path) -> None:
    (home / "mine.yaml").write_bytes(PROFILE)
    check_load(home, as_yaml(random, CONFIG))


def mutate_profile(random: Random, home: Path) -> None:
    (home / "mine.yaml").write_bytes(as_yaml(random, PROFILE))
    check_load(home, CONFIG)


def check_load(home: Path, raw: bytes) -> None:
    path = home / "config.yaml"
    path.write_bytes(raw)
    try:
        assert isinstance(load(path, cpus=4), Config)
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


def mutate_pod(random: Random, home: Path) -> None:
    raw = mutated_tree(random, POD)
    try:
        pod = parse_pod(raw)
    except PodError as error:
        check_line(error)
        return
    assert isinstance(pod, Pod)
    for text in (pod.key, pod.uid, pod.qos_class, pod.service_account, *pod.labels, *pod.images):
        assert text.isprintable()
    limit = network_limit(pod.annotations, QosClass.BE)
    assert limit.problem is None or limit.problem.isprintable()


def mutate_descriptor(random: Random, home: Path) -> None:
    raw = mutated_tree(random, DESCRIPTOR)
    try:
        found = parse_descriptor(raw)
    except DescriptorError as error:
        check_line(error)
        return
    assert isinstance(found, Descriptor)
    profile, problems = derived_profile(profiles("default")["default"], found, 200_000_000)
    assert all(0 < spec.resolution < spec.sweet_point for spec in profile.indicators)
    assert all(text.isprintable() for text in (*found.problems, *problems))


def check_line(error: Exception) -> None:
    assert str(error).isprintable()
    assert len(str(error)) < 1000


def mutate_record(random: Random, home: Path) -> None:
    for old in home.iterdir():
        old.unlink()
    Journal(home).put(RECORD)
    (path,) = home.iterdir()
    whole = path.read_bytes()
    raw = mutated_record(random, whole)
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


def mutated_record(random: Random, raw: bytes) -> bytes:
    """Return the record *raw* with mutated text, or with mutated values and a valid checksum."""
    if random.random() < 0.5:
        return mutated_bytes(random, raw)
    fields = mutated_tree(random, {k: v for k, v in json.loads(raw).items() if k != "crc"})
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


SUBJECTS = {
    "config": mutate_config,
    "profile": mutate_profile,
    "pod": mutate_pod,
    "descriptor": mutate_descriptor,
    "record": mutate_record,
}


def mutate(subject: str, numbers: range, home: Path) -> None:
    """Check the mutations with *numbers*; the number of one that fails is in the notes."""
    for number in numbers:
        try:
            SUBJECTS[subject](Random(f"{subject} {number}"), home)
        except BaseException as error:
            error.add_note(f"mutation {number} of {subject}")
            raise


def test_what_is_mutated_is_valid(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(PROFILE)
    (tmp_path / "config.yaml").write_bytes(CONFIG)
    assert load(tmp_path / "config.yaml", cpus=4).kubernetes
    assert parse_pod(POD).mirror
    assert len(parse_descriptor(DESCRIPTOR).points) == 2


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_mutation_is_used_or_refused(subject: str, tmp_path: Path) -> None:
    mutate(subject, range(1500), tmp_path)


def growth_bytes(subject: str) -> int:
    """Return how much the peak memory of a process grows after the first 1000 mutations."""
    with tempfile.TemporaryDirectory() as home:
        mutate(subject, range(1000), Path(home))
        before = peak_bytes()
        mutate(subject, range(1000, 11_000), Path(home))
        return peak_bytes() - before


def peak_bytes() -> int:
    match = re.search(r"^VmHWM:\s+([0-9]+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert match
    return 1024 * int(match[1])


@pytest.mark.soak
@pytest.mark.parametrize("subject", SUBJECTS)
def test_mutations_do_not_fill_the_memory(subject: str) -> None:
    # In a process of its own: memory that earlier tests freed would hide the growth.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        grown = pool.submit(growth_bytes, subject).result()
    print(f"{subject}: {grown / 2**20:.1f} MiB more after 10000 mutations")
    assert grown <= 16 << 20
