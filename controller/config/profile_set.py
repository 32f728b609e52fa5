# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The set of profiles: the shipped files, the files of the configuration, and texts of a cluster.

Of two profiles with the same name the later one in this order replaces the earlier one.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from controller.config.fields import check
from controller.config.models import ConfigModel, ProfileModel
from controller.config.profile import build_profile
from controller.config.sections.eviction import StandaloneAction
from controller.config.yaml_document import (
    ConfigError,
    Document,
    Loc,
    parse_document,
    read_document,
    read_text,
)
from controller.core.model import Knob
from controller.core.settings import Profile
from controller.host.package_data import profiles_dir

__all__ = (
    "DERIVED_SEPARATOR",
    "LoadedProfiles",
    "base_name",
    "find_conflicts",
    "load_profiles",
    "parse_profiles",
)

# Separates the name of a profile from the descriptor in the name of a profile that was derived
# from it. Names in files cannot contain it.
DERIVED_SEPARATOR = "+"

_SUFFIX = ".yaml"
# An object of the API server has at most about 1.5 MiB; the shipped profiles have 1 to 4 KiB.
MAX_PROFILES = 64
MAX_CHARS = 1 << 18


def base_name(profile: str) -> str:
    """Return the name of the profile from which *profile* was derived; else its own name."""
    return profile.partition(DERIVED_SEPARATOR)[0]


class LoadedProfiles(NamedTuple):
    """Profiles by name, and the files that they were read from.

    ``refused`` are the names of those whose files have a mistake.
    """

    profiles: dict[str, Profile]
    documents: dict[str, Document]
    refused: set[str]


def load_profiles(
    document: Document,
    folder: Path,
    model: ConfigModel,
    problems: list[str],
    read: Callable[[Path], str] = read_text,
) -> LoadedProfiles:
    """Return the shipped profiles and those that *model* lists, by name.

    File names in *model* are relative to *folder*, and *read* returns their text. Their problems go
    to *problems*.

    :raises ConfigError: a shipped profile is invalid.
    """
    shipped = sorted(profiles_dir().glob(f"*{_SUFFIX}"))
    evicts = model.kubernetes is not None or model.eviction.standalone is not StandaloneAction.OFF
    documents = {file.stem: read_document(file) for file in shipped}
    profiles = {name: _profile(each, model.tick, evicts) for name, each in documents.items()}
    refused: set[str] = set()
    seen: dict[str, Path] = {}
    for index, name in enumerate(model.profiles):
        file = folder / name
        try:
            text = read(file)
        except ConfigError as error:
            problems += [document.problem(("profiles", index), each) for each in error.problems]
            continue
        try:
            read_from = parse_document(text, str(file))
        except ConfigError as error:
            problems += error.problems
            refused.add(file.stem)
            continue
        try:
            profile = _profile(read_from, model.tick, evicts)
        except ConfigError as error:
            problems += error.problems
            refused.add(_name(read_from) or file.stem)
            continue
        if profile.name in seen:
            text = f"{file} and {seen[profile.name]} both define profile {profile.name!r}"
            problems.append(document.problem(("profiles", index), text))
        seen[profile.name] = file
        profiles[profile.name] = profile
        documents[profile.name] = read_from
    return LoadedProfiles(profiles, documents, refused)


def _name(document: Document) -> str:
    name = document.data.get("name") if isinstance(document.data, dict) else None
    return name if isinstance(name, str) else ""


def parse_profiles(
    texts: Mapping[str, object], origin: str, *, tick_ns: int, cpus: int
) -> dict[str, Profile]:
    """Return the profiles in *texts*, by name; a key is the profile's name and ``.yaml``.

    *origin* precedes the key in messages. *tick_ns* is the control period and *cpus* the number
    of CPUs of this host, against which the profiles are checked.

    :raises ConfigError: a profile is invalid, or they are too many (64) or too large (256 KiB).
    """
    if len(texts) > MAX_PROFILES:
        raise ConfigError([f"{origin}: more than {MAX_PROFILES} profiles"])
    if sum(len(text) for text in texts.values() if isinstance(text, str)) > MAX_CHARS:
        raise ConfigError([f"{origin}: more than {MAX_CHARS >> 10} KiB"])
    profiles: dict[str, Profile] = {}
    problems: list[str] = []
    for key, text in sorted(texts.items()):
        place = f"{origin}: {key[:64]}"
        if not key.endswith(_SUFFIX) or not isinstance(text, str):
            problems.append(f"{place}: not a profile: keys are NAME{_SUFFIX}, values are text")
            continue
        try:
            document = parse_document(text, place)
            profile = _profile(document, tick_ns, evicts=True)
        except ConfigError as error:
            problems += error.problems
            continue
        if profile.name != key.removesuffix(_SUFFIX):
            problems.append(
                document.problem(("name",), f"must be the name in its key, {key[:64]!r}")
            )
        for loc, _, what in find_conflicts(profile, tick_ns, cpus):
            problems.append(document.problem(loc, what))
        profiles[profile.name] = profile
    if problems:
        raise ConfigError(problems)
    return profiles


def find_conflicts(profile: Profile, tick_ns: int, cpus: int) -> Iterator[tuple[Loc, Loc, str]]:
    """Yield conflicts of a valid *profile* with a control period of *tick_ns* and with *cpus* CPUs.

    Each is (place in the profile, place in the configuration, message).
    """
    for spec in profile.indicators:
        if tick_ns > spec.window_ns:
            text = f"the tick is longer than the window of {spec.name} in profile {profile.name!r}"
            yield ("indicators", str(spec.name), "window"), ("tick",), text
    if profile.limits[Knob.CPU_QUOTA].floor >= cpus:
        text = f"profile {profile.name!r}: the floor of cpu.quota is not below {cpus} CPUs"
        yield ("knobs", str(Knob.CPU_QUOTA), "floor"), ("workloads",), text


def _profile(document: Document, tick_ns: int, evicts: bool) -> Profile:
    return build_profile(document, check(document, ProfileModel), tick_ns, evicts=evicts)
