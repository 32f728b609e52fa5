# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From a profile file to ``model.Profile``: units by indicator, and what must fit together."""

from dataclasses import dataclass, field

from controller.configfile import ConfigError, Document, Loc
from controller.configmodels import IndicatorModel, KnobModel, ProfileModel
from controller.control.tuning import DEFAULT_LIMITS
from controller.knoblimits import read_limits
from controller.model import Channel, IndicatorName, Knob
from controller.settings import IndicatorSpec, KnobLimits, Profile
from controller.sweetpoints import read_indicator
from controller.units import NS_PER_US

__all__ = ("build_profile",)


@dataclass(slots=True)
class _Reader:
    """Collects what is wrong with one profile while its fields are read."""

    document: Document
    tick_ns: int
    problems: list[str] = field(default_factory=list)

    def complain(self, loc: Loc, message: str) -> None:
        self.problems.append(self.document.problem(loc, message))

    def indicator(self, name: IndicatorName, model: IndicatorModel) -> IndicatorSpec | None:
        def complain(loc: tuple[str, ...], message: str) -> None:
            self.complain(("indicators", str(name), *loc), message)

        return read_indicator(name, model, self.tick_ns, complain)

    def limits(self, knob: Knob, model: KnobModel) -> KnobLimits:
        def complain(loc: tuple[str, ...], message: str) -> None:
            self.complain(("knobs", str(knob), *loc), message)

        return read_limits(knob, model, complain)


def build_profile(
    document: Document, model: ProfileModel, tick_ns: int, *, evicts: bool
) -> Profile:
    """Return the profile that *model*, read from *document*, stands for.

    Gains that are ``auto`` are computed for a control period of *tick_ns*. *evicts*: there is
    somebody here who can carry an eviction out, or report it.

    :raises ConfigError: fields that do not fit together, or that this version cannot act on.
    """
    reader = _Reader(document, tick_ns)
    specs = [reader.indicator(name, one) for name, one in model.indicators.items()]
    limits = {knob: reader.limits(knob, one) for knob, one in model.knobs.items()}
    channels = tuple(channel for channel in Channel if channel in model.channels)
    if model.evict.enabled and not evicts:
        text = "nothing here can evict: set eviction.standalone or kubernetes in the configuration"
        reader.complain(("evict", "enabled"), text)
    if reader.problems:
        raise ConfigError(reader.problems)
    return Profile(
        name=model.name,
        indicators=tuple(spec for spec in specs if spec is not None),
        sched_idle=model.sched_idle,
        be_share_min=model.be_share_min,
        idle_oncpu_ratio=model.idle_below,
        limits={**DEFAULT_LIMITS, **limits},
        channels=channels,
        cpu_burst_us=model.cpu_burst // NS_PER_US,
        evict_enabled=model.evict.enabled,
        evict_after_ns=model.evict.after,
    )
