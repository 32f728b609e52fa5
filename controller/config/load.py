# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Loading of the configuration file and of the profile files into frozen records.

All or nothing: ``load`` returns a ``Config`` if all files are valid; otherwise it raises a
``ConfigError`` that lists all problems, each with file, line and field.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
import time
from typing import Any

from controller.config.candidate import Candidate, add_candidate
from controller.config.fields import check
from controller.config.models import ConfigModel, ProfileModel
from controller.config.own_figure import find_unit_conflicts, steered_services
from controller.config.policies import (
    PoliciesInForce,
    Policy,
    PolicyInForce,
    Situation,
    apply,
    build_policies,
    resolve,
)
from controller.config.policy_changes import find_changes
from controller.config.profile_set import LoadedProfiles, find_conflicts, load_profiles
from controller.config.sections.agent import (
    BudgetConfig,
    HistoryConfig,
    NriConfig,
    build_budget,
    build_counters,
    build_history,
    build_nri,
)
from controller.config.sections.eviction import EvictionConfig, build_eviction, build_limits
from controller.config.sections.io import IoClassConfig, build_io, build_io_classes
from controller.config.sections.knobs import build_core_scheduling, build_memory
from controller.config.sections.kubernetes import KubernetesConfig, build_kubernetes
from controller.config.sections.law import build_law, find_removed
from controller.config.sections.network import NetworkConfig, build_network
from controller.config.sections.pod_classes import PodClass
from controller.config.sections.resctrl import ResctrlConfig, build_resctrl
from controller.config.sections.service_level import build_service_level
from controller.config.sections.service_sources import ServiceLevelConfig
from controller.config.sections.trial import TrialConfig, build_trial
from controller.config.state_dir import parse_directory
from controller.config.workload_rules import WorkloadRule, build_rules, replace_profiles
from controller.config.yaml_document import ConfigError, Document, parse_document, read_text
from controller.core.model import Mode
from controller.core.settings import HostFacts, IoSettings, Profile, Settings
from controller.host.facts import online_cpus, present_cpus

__all__ = (
    "Config",
    "ConfigError",
    "WorkloadRule",
    "json_schemas",
    "load",
)

# Number of ticks without data after which the safe state is applied.
STALE_TICKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A checked configuration. ``http`` is (host, port), or ``None`` if the pages are off.

    ``http_token_file`` holds the bearer token that the pages require; ``None``: no token.
    ``looks``: ticks that need no decision are left out. ``warnings`` are about what is accepted and
    has no effect, a line each. ``node_labels`` is ``None`` in a cluster: the Node object has them.
    ``replace_profiles`` maps profiles to those that pods get in their place; ``workloads`` have
    got them.
    What the policies ``in_force`` set is in the other fields.
    """

    path: Path
    state_dir: Path
    data_dir: Path
    http: tuple[str, int] | None
    http_token_file: Path | None = None
    looks: bool = True
    workloads: tuple[WorkloadRule, ...]
    counters: Mapping[str, str]
    budget: BudgetConfig
    history: HistoryConfig
    nri: NriConfig
    trial: TrialConfig = field(default_factory=TrialConfig)
    settings: Settings
    service_level: ServiceLevelConfig | None = None
    network: NetworkConfig | None = None
    resctrl: ResctrlConfig
    io: IoSettings
    io_classes: tuple[IoClassConfig, ...] = ()
    kubernetes: KubernetesConfig | None = None
    eviction: EvictionConfig
    warnings: tuple[str, ...] = ()
    replace_profiles: Mapping[str, str] = field(default_factory=dict)
    node_labels: Mapping[str, str] | None = field(default_factory=dict)
    policies: tuple[Policy, ...] = ()
    in_force: PoliciesInForce = field(default_factory=PoliciesInForce)


def load(
    path: Path,
    *,
    mode: Mode | None = None,
    cpus: int | None = None,
    read: Callable[[Path], str] = read_text,
    labels: Mapping[str, str] | None = None,
    now_s: float | None = None,
    paused: frozenset[str] = frozenset(),
    anywhere: bool = False,
    every_policy: bool = True,
    candidate: Candidate | None = None,
) -> Config:
    """Read *path* and every profile file it names.

    *mode* overrides the mode in the file and in its policies. *cpus* is the number of CPUs against
    which amounts of CPU are checked; default: those of this host. One that is offline now counts
    for the check: the same file is right again when it comes back. *read* returns the text of a
    file.

    Policies are those in force on a node with *labels*, ``None``: not known, at *now_s*, in seconds
    since 1970; default: now. Those whose names are in *paused* are not. Without Kubernetes the
    labels in the file count, unless *anywhere*.
    Each policy is checked alone and all of them together, and the file without them, unless not
    *every_policy*. The *candidate* of a trial is one more policy.

    :raises ConfigError: a file is invalid; nothing was changed.
    :raises OSError: see ``read_text``.
    """
    online = len(online_cpus()) if cpus is None else cpus
    cpus = max(online, len(present_cpus())) if cpus is None else cpus
    document, read = parse_document(read(path), str(path)), cache(read)
    if candidate is not None:
        document = add_candidate(document, candidate)

    def build(document: Document) -> Config:
        return _build(document, path, mode, online, cpus, read)

    if every_policy:
        config = build(document)
        if not config.policies:
            return config
        _check_policies(document, config.policies, build)
    # Without the others, what is in force need not be valid without policies: CPUs may be gone.
    policies, own_labels = _find_policies(document)
    if candidate is not None:
        policies = (*policies[:-1], replace(policies[-1], until_s=candidate.until_s))
    known = labels if own_labels is None or anywhere else own_labels
    situation = Situation(known, time.time() if now_s is None else now_s, paused)
    resolved, in_force = resolve(document, policies, situation)
    changes = find_changes(document, in_force)
    in_force = replace(in_force, candidate=candidate, changes=changes)
    return replace(build(resolved), in_force=in_force, policies=policies)


def _find_policies(
    document: Document,
) -> tuple[tuple[Policy, ...], Mapping[str, str] | None]:
    """Return the policies and the labels of this host, ``None``: its Node object has them.

    :raises ConfigError: they are not valid.
    """
    model = check(document, ConfigModel)
    problems: list[str] = []
    has_pods = model.kubernetes is not None
    policies = build_policies(document, model.policies, problems, has_pods=has_pods)
    if problems:
        raise ConfigError(problems)
    return policies, None if has_pods else model.node_labels


def _check_policies(
    document: Document, policies: tuple[Policy, ...], build: Callable[[Document], Config]
) -> None:
    """Load *document* with each policy alone, and with all of them.

    What else can be in force together has no values but these. If it is refused all the same, that
    is when it comes into force.

    :raises ConfigError: with one of the policies it is invalid.
    """
    entries = [PolicyInForce(each.name, each.place, "") for each in policies]
    for chosen in (*((each,) for each in entries), tuple(entries)):
        names = " and ".join(each.name for each in chosen)
        try:
            build(apply(document, PoliciesInForce(entries=tuple(chosen))))
        except ConfigError as error:
            raise ConfigError([f"{each} (policy {names})" for each in error.problems]) from None


def _build(
    document: Document,
    path: Path,
    mode: Mode | None,
    online: int,
    cpus: int,
    read: Callable[[Path], str],
) -> Config:
    model = check(document, ConfigModel)
    problems: list[str] = []
    if not model.workloads and model.kubernetes is None:
        given = ("workloads",) in document.lines
        text = "must have at least one entry" if given else "is missing"
        problems.append(document.problem(("workloads",), text))
    loaded = load_profiles(document, path.parent, model, problems, read)
    profiles = loaded.profiles
    http = _parse_http(document, model.http, problems)
    token_file = _parse_token_file(document, model, problems)
    rules = build_rules(document, model.workloads, profiles, problems, refused=loaded.refused)
    rules = replace_profiles(document, rules, model, {*profiles, *loaded.refused}, problems)
    state_dir, data_dir = parse_directory(model.state_dir), parse_directory(model.data_dir)
    for key, directory in {"state_dir": state_dir, "data_dir": data_dir}.items():
        if directory is None:
            problems.append(document.problem((key,), "must be an absolute path without '..'"))
    if model.reserve >= cpus:
        problems.append(
            document.problem(("reserve",), f"must be less than this host's {cpus} CPUs")
        )
    problems += _find_conflicts(document, model, profiles, rules, cpus)
    steered = steered_services(rules, loaded)
    problems += find_unit_conflicts(document, model.service_level, steered, loaded)
    service_level = build_service_level(
        document,
        model.service_level,
        services=set() if model.kubernetes else {rule.service for rule in rules},
        steered=steered.keys(),
        has_pods=model.kubernetes is not None,
        problems=problems,
    )
    network = build_network(document, model.network, problems)
    kubernetes = build_kubernetes(document, model.kubernetes, problems)
    resctrl = build_resctrl(document, model.resctrl, problems)
    io_classes = build_io_classes(document, model.io, problems)
    problems += _find_unknown_classes(loaded, "resctrl", resctrl.classes)
    problems += _find_unknown_classes(loaded, "io", io_classes)
    policies = build_policies(document, model.policies, problems, has_pods=kubernetes is not None)
    sets = {each.name: each.sets for each in policies}
    trial = build_trial(
        document,
        model.trial,
        sets,
        problems,
        has_pods=kubernetes is not None,
        has_pages=model.http != "off",
    )
    if kubernetes is not None and model.node_labels:
        text = "has no effect with a section kubernetes: the Node object has the labels"
        problems.append(document.problem(("node_labels",), text))
    if problems or state_dir is None or data_dir is None:
        raise ConfigError(problems)
    return Config(
        path=path,
        state_dir=state_dir,
        data_dir=data_dir,
        http=http,
        http_token_file=token_file,
        looks=model.looks,
        workloads=rules,
        counters=build_counters(model.counters),
        budget=build_budget(model.budget),
        history=build_history(model.history),
        nri=build_nri(model.nri),
        trial=trial,
        settings=Settings(
            tick_ns=model.tick,
            host=HostFacts(cpus=online),
            profiles=profiles,
            reserve_cpus=model.reserve,
            safe_state=model.safe_state,
            stale_ticks=STALE_TICKS,
            mode=mode or model.mode,
            core=build_core_scheduling(model.core_scheduling),
            law=build_law(model.law),
            memory=build_memory(model.memory),
            eviction=build_limits(
                model.kubernetes.eviction if model.kubernetes else model.eviction
            ),
        ),
        service_level=service_level,
        network=network,
        resctrl=resctrl,
        io=build_io(model.io),
        io_classes=io_classes,
        kubernetes=kubernetes,
        eviction=build_eviction(model.eviction),
        warnings=find_removed(document),
        replace_profiles=model.replace_profiles,
        node_labels=model.node_labels if kubernetes is None else None,
        policies=policies,
    )


def json_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of both file formats, for editors: ``config``, ``profile``."""
    return {
        "config": ConfigModel.model_json_schema(),
        "profile": ProfileModel.model_json_schema(),
    }


def _parse_http(document: Document, text: str, problems: list[str]) -> tuple[str, int] | None:
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    known = host.isascii() and host.isprintable()
    if not host or not (known and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        problems.append(
            document.problem(("http",), f"{text!r} is not HOST:PORT such as 127.0.0.1:9464, or off")
        )
        return None
    return host, int(port)


def _parse_token_file(document: Document, model: ConfigModel, problems: list[str]) -> Path | None:
    text = model.http_token_file
    if text is None:
        return None
    if not text.startswith("/") or ".." in Path(text).parts or "\0" in text:
        problems.append(
            document.problem(("http_token_file",), "must be an absolute path without '..'")
        )
    return Path(text)


def _find_conflicts(
    document: Document,
    model: ConfigModel,
    profiles: Mapping[str, Profile],
    rules: Iterable[WorkloadRule],
    cpus: int,
) -> Iterable[str]:
    """Yield conflicts between files that are valid on their own, and with this host."""
    # A pod can select any profile.
    chosen = set(profiles) if model.kubernetes else {rule.profile for rule in rules}
    for name in sorted(chosen & set(profiles)):
        for _, loc, text in find_conflicts(profiles[name], model.tick, cpus):
            yield document.problem(loc, text)


def _find_unknown_classes(
    loaded: LoadedProfiles, section: str, classes: Iterable[PodClass]
) -> Iterable[str]:
    """Yield the profiles of files that name a class which *section* lacks."""
    known = {each.name for each in classes}
    key = f"{section}_class"
    for name, profile in sorted(loaded.profiles.items()):
        wanted: str = getattr(profile, key)
        if wanted and wanted not in known:
            text = f"{section}.classes of the configuration has no {wanted!r}"
            yield loaded.documents[name].problem((key,), text)
