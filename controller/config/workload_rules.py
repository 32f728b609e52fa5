# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``workloads:``: names and classes for cgroups, by path or pattern.

What is wrong here is wrong in the text alone, whichever cgroups exist now. What else a scan of the
host finds is left out there (``controller.workloads.static``).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from controller.config.models import ConfigModel, WorkloadModel
from controller.config.yaml_document import Document, Loc
from controller.core.model import QosClass
from controller.core.settings import Profile

__all__ = ("DEFAULT_PROFILE", "WorkloadRule", "build_rules", "is_pattern", "replace_profiles")

DEFAULT_PROFILE = "default"
_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRule:
    """An entry of ``workloads``: a name and class for the cgroups that match a glob.

    ``cgroup`` is the glob, an absolute path below the cpu hierarchy. ``profile`` is empty unless
    the class is latency-sensitive. ``origin`` is ``file:line`` of the entry, for messages about
    cgroups that it matches. ``core_group`` is empty for the default group.
    """

    name: str
    cgroup: str
    qos: QosClass
    service: str
    profile: str
    origin: str
    core_group: str = ""


def is_pattern(cgroup: str) -> bool:
    """Return whether *cgroup*, a path of a rule or a part of it, is a glob."""
    return not _MAGIC.isdisjoint(cgroup)


def build_rules(
    document: Document,
    models: Iterable[WorkloadModel],
    profiles: Mapping[str, Profile],
    problems: list[str],
    *,
    refused: Collection[str] = (),
) -> tuple[WorkloadRule, ...]:
    """Return the checked section; what is wrong in it is added to *problems*.

    Profiles of the names in *refused* exist, and their problems were told.
    """
    rules = tuple(_rules(document, models, {*profiles, *refused}, problems))
    for index, text in _find_claimed(rules):
        problems.append(document.problem(("workloads", index, "cgroup"), text))
    return rules


def replace_profiles(
    document: Document,
    rules: tuple[WorkloadRule, ...],
    model: ConfigModel,
    profiles: Collection[str],
    problems: list[str],
) -> tuple[WorkloadRule, ...]:
    """Return *rules* with the profiles that ``replace_profiles`` of *model* has for theirs.

    In a cluster a name may be that of a profile of the ConfigMap, so it need not be one of
    *profiles*. A service of the file keeps its own profile then.
    """
    others = model.replace_profiles
    for name, other in others.items() if model.kubernetes is None else ():
        for each in sorted({name, other} - {*profiles}):
            text = f"no profile named {each!r} (have: {', '.join(sorted(profiles))})"
            problems.append(document.problem(("replace_profiles", name), text))
    return tuple(
        replace(rule, profile=others[rule.profile])
        if others.get(rule.profile) in profiles
        else rule
        for rule in rules
    )


def _rules(
    document: Document,
    models: Iterable[WorkloadModel],
    profiles: Collection[str],
    problems: list[str],
) -> Iterable[WorkloadRule]:
    names: dict[str, int] = {}
    patterns: dict[str, int] = {}
    for index, model in enumerate(models):
        loc: Loc = ("workloads", index)
        if model.name in names:
            first = document.lines[("workloads", names[model.name], "name")]
            text = f"{model.name!r} is already the name of the workload in line {first}"
            problems.append(document.problem((*loc, "name"), text))
        names.setdefault(model.name, index)
        pattern = _normal_pattern(model.cgroup)
        if pattern is None:
            text = "must be a path such as /web or /batch/* below the cpu hierarchy, not its root"
            problems.append(document.problem((*loc, "cgroup"), text))
        elif pattern in patterns:
            first = document.lines[("workloads", patterns[pattern], "cgroup")]
            text = f"{pattern} already belongs to the workload in line {first}"
            problems.append(document.problem((*loc, "cgroup"), text))
        else:
            patterns[pattern] = index
        profile = model.profile or DEFAULT_PROFILE
        if model.qos is not QosClass.LS:
            if model.profile is not None:
                text = f"only a {QosClass.LS} workload has a profile"
                problems.append(document.problem((*loc, "profile"), text))
            profile = ""
        elif profile not in profiles:
            text = f"no profile named {profile!r} (have: {', '.join(sorted(profiles))})"
            problems.append(document.problem((*loc, "profile"), text))
        if model.core_group is not None and model.qos is not QosClass.BE:
            text = f"only a {QosClass.BE} workload has a core_group"
            problems.append(document.problem((*loc, "core_group"), text))
        yield WorkloadRule(
            name=model.name,
            cgroup=pattern or "",
            qos=model.qos,
            service=model.service or model.name,
            profile=profile,
            origin=f"{document.origin}:{document.lines[loc]}",
            core_group=model.core_group or "",
        )


def _find_claimed(rules: tuple[WorkloadRule, ...]) -> Iterator[tuple[int, str]]:
    """Yield (index, text) of rules that name a cgroup which another rule has, if it exists.

    The other rule is an earlier one that matches it, or any that matches a cgroup above it, because
    a knob of the outer cgroup acts on both.
    """
    for index, rule in enumerate(rules):
        if not rule.cgroup or is_pattern(rule.cgroup):
            continue
        for other, owner in enumerate(rules):
            claimed = _overlap(rule.cgroup, owner.cgroup)
            if claimed == rule.cgroup and other < index and owner.cgroup != rule.cgroup:
                yield index, f"{claimed} already belongs to the workload {owner.name!r}"
                break
            if claimed not in ("", rule.cgroup):
                yield index, f"{rule.cgroup} lies inside {claimed} of the workload {owner.name!r}"
                break


def _overlap(path: str, pattern: str) -> str:
    """Return the cgroup at *path* or above it that *pattern* matches; empty if there is none."""
    names, globs = path.split("/"), pattern.split("/")
    fits = len(globs) <= len(names) and all(map(fnmatchcase, names, globs))
    return "/".join(names[: len(globs)]) if fits else ""


def _normal_pattern(pattern: str) -> str | None:
    parts = [part for part in pattern.split("/") if part]
    bad = not pattern.startswith("/") or not parts or any(p in (".", "..", "**") for p in parts)
    return None if bad else "/" + "/".join(parts)
