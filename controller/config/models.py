# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The shape of the configuration file and of profile files: keys, types, units, ranges.

What one field alone can get wrong is checked here; what needs two fields, two files or the host
is checked in ``controller.config``. The JSON schemas for editors come from these models.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from controller.config.fields import RATE, RATIO, Measure, Strict, Text, cpus, duration, written
from controller.config.sections.agent import BudgetModel, CountersModel
from controller.config.sections.eviction import EvictionModel
from controller.config.sections.knobs import CORE_GROUP, CoreSchedulingModel, IoModel, ResctrlModel
from controller.config.sections.kubernetes import KubernetesModel
from controller.config.sections.network import NetworkModel
from controller.config.sections.service_level import ServiceLevelModel
from controller.core.model import Channel, IndicatorName, Knob, Mode, QosClass
from controller.core.settings import SafeState

__all__ = (
    "ConfigModel",
    "EvictModel",
    "GainsModel",
    "IndicatorModel",
    "KnobModel",
    "LoadBinModel",
    "ProfileModel",
    "WorkloadModel",
)


def _gains_kind(value: object) -> str | None:
    if isinstance(value, dict | GainsModel):
        return "<mapping>"
    return "<auto>" if value == "auto" else None


class GainsModel(Strict):
    """PID gains per unit of deviation."""

    kp: Annotated[float, Field(gt=0, le=100)]
    ti: Annotated[int, duration("1ms", "1h")]
    td: Annotated[int, duration("0s", "1h")] = written("0s")


class LoadBinModel(Strict):
    """The sweet point from a load on, in CPUs that the workload runs."""

    above: Annotated[float, cpus("1mcpu", "1024cpu")]
    sweet_point: Measure


class IndicatorModel(Strict):
    """The sweet point of one indicator and how to steer to it.

    What is left out of tolerance, resolution, window, min_samples and channel depends on the
    indicator.
    """

    sweet_point: Measure
    bins: Annotated[list[LoadBinModel], Field(max_length=16)] = written([])
    tolerance: Annotated[float, Field(gt=1, le=100)] | None = None
    resolution: Measure | None = None
    dead_zone: Annotated[float, Field(ge=0, lt=1)] = 0.1
    window: Annotated[int, duration("50ms", "1h")] | None = None
    filter: Annotated[int, duration("0s", "1h")] = written("4s")
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
    """How far and how fast a graded knob may be moved; what is left out depends on the knob."""

    floor: Measure | None = None
    squeeze: Annotated[float, RATE] | None = None
    release_step: Annotated[float, Field(gt=0, le=1)] | None = None
    release_spacing: Annotated[int, duration("0s", "1h")] | None = None


class EvictModel(Strict):
    """When best-effort work that cannot be squeezed enough is removed."""

    enabled: bool = False
    after: Annotated[int, duration("1s", "24h")] = written("60s")


class ProfileModel(Strict):
    """A profile file: the numbers for one type of service."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    description: str = ""
    indicators: Annotated[dict[Annotated[IndicatorName, Text], IndicatorModel], Field(min_length=1)]
    sched_idle: bool = True
    be_share_min: Annotated[float, RATIO] = written("20%")
    idle_below: Annotated[float, RATIO] = written("0.5%")
    channels: Annotated[list[Annotated[Channel, Text]], Field(min_length=1)] = written(
        [str(channel) for channel in Channel]
    )
    cpu_burst: Annotated[int, duration("0s", "1s")] = written("0s")
    knobs: dict[Annotated[Knob, Text], KnobModel] = written({})
    evict: EvictModel = written({})


class WorkloadModel(Strict):
    """One or more cgroups that belong together; ``cgroup`` is a glob per path component."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,252}$")]
    cgroup: str
    qos: Annotated[QosClass, Text] = Field(alias="class")
    service: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    profile: str | None = None
    core_group: Annotated[str, CORE_GROUP] | None = None


class ConfigModel(Strict):
    """The configuration file; without ``kubernetes`` it has to name at least one workload."""

    mode: Annotated[Mode, Text] = Mode.OBSERVE
    tick: Annotated[int, duration("50ms", "10s")] = written("200ms")
    state_dir: str = "/run/sweetpoint"
    http: str = "127.0.0.1:9464"
    http_token_file: str | None = None
    reserve: Annotated[float, cpus("0cpu", "1024cpu")] = written("100mcpu")
    safe_state: Annotated[SafeState, Text] = SafeState.STATIC
    workloads: list[WorkloadModel] = written([])
    profiles: list[Annotated[str, Field(min_length=1)]] = written([])
    service_level: ServiceLevelModel | None = None
    network: NetworkModel | None = None
    resctrl: ResctrlModel = written({})
    io: IoModel = written({})
    core_scheduling: CoreSchedulingModel = written({})
    counters: CountersModel = written({})
    budget: BudgetModel = written({})
    kubernetes: KubernetesModel | None = None
    eviction: EvictionModel = written({})
