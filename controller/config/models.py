# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Models of the configuration file and of profile files: keys, types, units, ranges.

The models check each field alone. Checks that need two fields, two files or the host are in
``controller.config.load``, ``profile``, ``profile_set`` and the ``build_`` functions of the
sections. The JSON schemas for editors are made from these models.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, WithJsonSchema

from controller.config.fields import (
    RATE,
    RATIO,
    RATIO_ABOVE,
    Measure,
    Strict,
    Text,
    cpus,
    duration,
    raw_default,
)
from controller.config.sections.agent import BudgetModel, CountersModel, HistoryModel
from controller.config.sections.eviction import EvictionModel
from controller.config.sections.knobs import CORE_GROUP, CoreSchedulingModel, IoModel, ResctrlModel
from controller.config.sections.kubernetes import KubernetesModel
from controller.config.sections.law import LawModel
from controller.config.sections.network import NetworkModel
from controller.config.sections.service_level import ServiceLevelModel
from controller.config.state_dir import DEFAULT_STATE_DIR
from controller.core.model import Channel, IndicatorName, Knob, Mode, QosClass
from controller.core.settings import SafeState

__all__ = (
    "ConfigModel",
    "EvictModel",
    "GainsModel",
    "IndicatorModel",
    "KnobModel",
    "LearnModel",
    "LoadBinModel",
    "ProfileModel",
    "WorkloadModel",
)


# Its unit depends on the indicator.
LOAD_PATTERN = r"^[0-9]+(\.[0-9]+)? *(cpus?|mcpu|/ *s)$"


def _gains_kind(value: object) -> str | None:
    if isinstance(value, dict | GainsModel):
        return "<mapping>"
    return "<auto>" if value == "auto" else None


class GainsModel(Strict):
    """PID gains per unit of deviation."""

    kp: Annotated[float, Field(gt=0, le=100)]
    ti: Annotated[int, duration("1ms", "1h")]
    td: Annotated[int, duration("0s", "1h")] = raw_default("0s")


class LoadBinModel(Strict):
    """The sweet point at loads above a limit, in CPUs, or in packets/s for cpu_per_packet."""

    above: Annotated[Measure, WithJsonSchema({"type": "string", "pattern": LOAD_PATTERN})]
    sweet_point: Measure


class LearnModel(Strict):
    """A sweet point that is learned; ``until_sure`` holds until that is done.

    ``allow`` is how far above what is normal the sweet point lies; its default depends on the
    indicator.
    """

    learn: Literal[True]
    until_sure: Measure | None = None
    allow: Annotated[float, RATIO_ABOVE] | None = None


class ObjectiveModel(Strict):
    """A sweet point below the objective of the service's own figure, by the figure's scatter."""

    objective: Measure


def _sweet_point_kind(value: object) -> str:
    if isinstance(value, ObjectiveModel) or (isinstance(value, dict) and "objective" in value):
        return "<objective>"
    return "<mapping>" if isinstance(value, dict | LearnModel) else "<text>"


class IndicatorModel(Strict):
    """The sweet point of one indicator and the parameters of its control loop.

    The sweet point is a value, ``learn``, ``{learn: true, until_sure: VALUE}`` or
    ``{objective: VALUE}``. The defaults of tolerance, resolution, window, min_samples and channel
    depend on the indicator.
    """

    sweet_point: Annotated[
        Annotated[Measure, Tag("<text>")]
        | Annotated[LearnModel, Tag("<mapping>")]
        | Annotated[ObjectiveModel, Tag("<objective>")],
        Discriminator(_sweet_point_kind),
    ]
    bins: Annotated[list[LoadBinModel], Field(max_length=16)] = raw_default([])
    tolerance: Annotated[float, Field(ge=1.01, le=100)] | None = None
    resolution: Measure | None = None
    dead_zone: Annotated[float, Field(ge=0, lt=1)] = 0.1
    window: Annotated[int, duration("50ms", "1h")] | None = None
    filter: Annotated[int, duration("0s", "1h")] = raw_default("4s")
    min_samples: Annotated[int, Field(ge=0, le=10**6)] | None = None
    channel: Annotated[Channel, Text] | None = None
    gains: Annotated[
        Annotated[Literal["auto"], Tag("<auto>")] | Annotated[GainsModel, Tag("<mapping>")],
        Discriminator(
            _gains_kind,
            custom_error_type="gains",
            custom_error_message="must be auto or a mapping such as {kp: 0.4, ti: 3s, td: 0s}",
        ),
    ] = "auto"


class KnobModel(Strict):
    """Floor and speed of a graded knob; the defaults depend on the knob."""

    floor: Measure | None = None
    squeeze: Annotated[float, RATE] | None = None
    release_step: Annotated[float, Field(gt=0, le=1)] | None = None
    release_spacing: Annotated[int, duration("0s", "1h")] | None = None


class EvictModel(Strict):
    """Eviction of best-effort work if a service still suffers at full squeeze."""

    enabled: bool = False
    after: Annotated[int, duration("1s", "24h")] = raw_default("60s")


class ProfileModel(Strict):
    """A profile file: sweet points, limits and other parameters for one type of service."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    description: str = ""
    indicators: Annotated[dict[Annotated[IndicatorName, Text], IndicatorModel], Field(min_length=1)]
    sched_idle: bool = True
    be_share_min: Annotated[float, RATIO] = raw_default("20%")
    idle_below: Annotated[float, RATIO] = raw_default("0.5%")
    channels: Annotated[list[Annotated[Channel, Text]], Field(min_length=1)] = raw_default(
        [str(channel) for channel in Channel]
    )
    cpu_burst: Annotated[int, duration("0s", "1s")] = raw_default("0s")
    knobs: dict[Annotated[Knob, Text], KnobModel] = raw_default({})
    evict: EvictModel = raw_default({})


class WorkloadModel(Strict):
    """One or more cgroups with a common name and class; ``cgroup`` is a glob per path component."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,252}$")]
    cgroup: str
    qos: Annotated[QosClass, Text] = Field(alias="class")
    service: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    profile: str | None = None
    core_group: Annotated[str, CORE_GROUP] | None = None


class ConfigModel(Strict):
    """The configuration file; without ``kubernetes`` it must have at least one workload."""

    mode: Annotated[Mode, Text] = Mode.OBSERVE
    tick: Annotated[int, duration("50ms", "10s")] = raw_default("200ms")
    state_dir: str = DEFAULT_STATE_DIR
    data_dir: str = "/var/lib/sweetpoint"
    http: str = "127.0.0.1:9464"
    http_token_file: str | None = None
    reserve: Annotated[float, cpus("0cpu", "1024cpu")] = raw_default("100mcpu")
    safe_state: Annotated[SafeState, Text] = SafeState.STATIC
    workloads: list[WorkloadModel] = raw_default([])
    profiles: list[Annotated[str, Field(min_length=1)]] = raw_default([])
    service_level: ServiceLevelModel | None = None
    network: NetworkModel | None = None
    resctrl: ResctrlModel = raw_default({})
    io: IoModel = raw_default({})
    core_scheduling: CoreSchedulingModel = raw_default({})
    law: LawModel = raw_default({})
    counters: CountersModel = raw_default({})
    budget: BudgetModel = raw_default({})
    history: HistoryModel = raw_default({})
    kubernetes: KubernetesModel | None = None
    eviction: EvictionModel = raw_default({})
