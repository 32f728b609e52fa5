# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""All profiles there are: the shipped ones, the administrator's files, and those of a cluster.

A later one replaces an earlier one of its name.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

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
)
from controller.core.model import Knob
from controller.core.settings import Profile
from controller.host.package_data import profiles_dir

__all__ = ("MADE_OF", "base_name", "load_profiles", "misfits", "parse_profiles")

# Between the name of a profile and that for which another one was made of it; no name in a file
# has it.
MADE_OF = "+"

_SUFFIX = ".yaml"
# An object of the API server has at most some 1.5 MiB; a profile of ours has one to four KiB.
MAX_PROFILES = 64
MAX_CHARS = 1 << 18


def base_name(profile: str) -> str:
    """Return the name of the profile that *profile* was made of; its own if of none."""
    return profile.partition(MADE_OF)[0]


def load_profiles(
    document: Document, folder: Path, model: ConfigModel, problems: list[str]
) -> dict[str, Profile]:
    """Read the shipped profiles, then the files that *model* names below *folder*."""
    shipped = sorted(profiles_dir().glob(f"*{_SUFFIX}"))
    evicts = model.kubernetes is not None or model.eviction.standalone is not StandaloneAction.OFF
    profiles = {file.stem: _profile(read_document(file), model.tick, evicts) for file in shipped}
    seen: dict[str, Path] = {}
    for index, name in enumerate(model.profiles):
        file = folder / name
        try:
            profile = _profile(read_document(file), model.tick, evicts)
        except ConfigError as error:
            problems += error.problems
            continue
        if profile.name in seen:
            text = f"{file} and {seen[profile.name]} both define profile {profile.name!r}"
            problems.append(document.problem(("profiles", index), text))
        seen[profile.name] = file
        profiles[profile.name] = profile
    return profiles


def parse_profiles(
    texts: Mapping[str, object], origin: str, *, tick_ns: int, cpus: int
) -> dict[str, Profile]:
    """Return the profiles in *texts*, by name; a key is the profile's name and ``.yaml``.

    *origin* stands before the key in messages. *tick_ns* and *cpus* are those of this host, which
    the profiles must fit.

    :raises ConfigError: anything is wrong with any of them, or they are too many or too big.
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
            problems.append(f"{place}: is not a profile; keys are NAME{_SUFFIX} with text")
            continue
        try:
            document = parse_document(text, place)
            profile = _profile(document, tick_ns, evicts=True)
        except ConfigError as error:
            problems += error.problems
            continue
        if profile.name != key.removesuffix(_SUFFIX):
            problems.append(document.problem(("name",), f"must be that of its key, {key[:64]!r}"))
        for loc, _, what in misfits(profile, tick_ns, cpus):
            problems.append(document.problem(loc, what))
        profiles[profile.name] = profile
    if problems:
        raise ConfigError(problems)
    return profiles


def misfits(profile: Profile, tick_ns: int, cpus: int) -> Iterator[tuple[Loc, Loc, str]]:
    """Name what is right in *profile* and does not fit this host or its control period.

    Each by its place in the profile, by that in the configuration, and what is wrong there.
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
