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
from controller.config.sections.agent import BudgetModel, CountersModel, HistoryModel, NriModel
from controller.config.sections.eviction import EvictionModel
from controller.config.sections.io import IoModel
from controller.config.sections.knobs import (
    CORE_GROUP,
    CoreSchedulingModel,
    MemoryModel,
)
from controller.config.sections.kubernetes import KubernetesModel
from controller.config.sections.law import LawModel
from controller.config.sections.network import NetworkModel
from controller.config.sections.pod_classes import CLASS_NAME
from controller.config.sections.policies import (
    MAX_POLICIES,
    LabelKey,
    LabelValue,
    PolicyModel,
    Replacements,
)
from controller.config.sections.resctrl import ResctrlModel
from controller.config.sections.service_models import ServiceLevelModel
from controller.config.sections.trial import TrialModel
from controller.config.state_dir import DEFAULT_STATE_DIR
from controller.core.model import Channel, IndicatorName, Knob, Mode, QosClass
from controller.core.settings import DEAD_ZONE, SafeState

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
    """Proportional gain: demand per unit of deviation; raise it if the loop answers too weakly."""
    ti: Annotated[int, duration("1ms", "1h")]
    """Integral time of the loop; shorten it if the indicator stays above its sweet point for
    long."""
    td: Annotated[int, duration("0s", "1h")] = raw_default("0s")
    """Derivative time of the loop; 0s, the default, is right for noisy indicators."""


class LoadBinModel(Strict):
    """The sweet point at loads above a limit, in CPUs, or in packets/s for cpu_per_packet."""

    above: Annotated[Measure, WithJsonSchema({"type": "string", "pattern": LOAD_PATTERN})]
    """Load above which this sweet point holds, in CPUs, for cpu_per_packet in packets per
    second."""
    sweet_point: Measure
    """The sweet point at such a load, in the unit of the indicator."""


class LearnModel(Strict):
    """A sweet point that is learned; ``until_sure`` holds until that is done.

    ``allow`` is how far above what is normal the sweet point lies; its default depends on the
    indicator.
    """

    learn: Literal[True]
    """Learn the sweet point from windows in which nothing disturbs the service."""
    until_sure: Measure | None = None
    """Sweet point that holds until the learned one is sure; without it the loop demands nothing
    until then."""
    allow: Annotated[float, RATIO_ABOVE] | None = None
    """How far above the normal value the learned sweet point lies; the default depends on the
    indicator."""


class ObjectiveModel(Strict):
    """A sweet point below the objective of the service's own figure, by the figure's scatter."""

    objective: Measure
    """Value that each figure of the service should keep, such as 10ms; the sweet point is found
    below it."""


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
    """Set point: a value such as 4ms, learn, a mapping with learn, or an objective of the
    service's own figure."""
    bins: Annotated[list[LoadBinModel], Field(max_length=16)] = raw_default([])
    """Sweet points by load, lowest load first, for cpi, llc_mpki and cpu_per_packet."""
    tolerance: Annotated[float, Field(ge=1.01, le=100)] | None = None
    """Factor over the sweet point that counts as deviation 1; raise it where larger excursions
    are acceptable."""
    resolution: Measure | None = None
    """Smallest difference of values that matters, in the unit of the indicator; raise it for a
    coarse source."""
    dead_zone: Annotated[float, Field(ge=0, lt=1)] = DEAD_ZONE
    """Half-width of the zone around deviation 0 in which the demand stays; raise it against
    frequent writes."""
    window: Annotated[int, duration("50ms", "1h")] | None = None
    """Time over which the value is computed; lengthen it for a service with few events."""
    filter: Annotated[int, duration("0s", "1h")] = raw_default("4s")
    """Time constant of the low-pass behind the window; lengthen it for a noisy indicator."""
    min_samples: Annotated[int, Field(ge=0, le=10**6)] | None = None
    """Fewest events in a window from which a value is computed; with fewer the indicator is
    idle."""
    channel: Annotated[Channel, Text] | None = None
    """Channel that the indicator steers; set it only where another resource causes the harm."""
    gains: Annotated[
        Annotated[Literal["auto"], Tag("<auto>")] | Annotated[GainsModel, Tag("<mapping>")],
        Discriminator(
            _gains_kind,
            custom_error_type="gains",
            custom_error_message="must be auto or a mapping such as {kp: 0.4, ti: 3s, td: 0s}",
        ),
    ] = "auto"
    """Gains of the loop: auto computes them from window, filter and tick; a mapping sets them."""


class KnobModel(Strict):
    """Floor and speed of a graded knob; the defaults depend on the knob."""

    floor: Measure | None = None
    """Least grant at full squeeze, in the unit of the knob; raise it to leave best-effort work
    more."""
    squeeze: Annotated[float, RATE] | None = None
    """Fastest rise of the knob's part of the demand per second while squeezing."""
    release_step: Annotated[float, Field(gt=0, le=1)] | None = None
    """Largest fall of the knob's part of the demand in one step of a release."""
    release_spacing: Annotated[int, duration("0s", "1h")] | None = None
    """Shortest time between two steps of a release; lengthen it if squeezes return soon."""


class EvictModel(Strict):
    """Eviction of best-effort work if a service still suffers at full squeeze."""

    enabled: bool = False
    """Whether best-effort work is evicted for a service that still suffers at full squeeze."""
    after: Annotated[int, duration("1s", "24h")] = raw_default("60s")
    """Time at full squeeze, with the service above its sweet point, before an eviction."""


class ProfileModel(Strict):
    """A profile file: sweet points, limits and other parameters for one type of service."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    """Name by which workloads, labels and rules select the profile."""
    description: str = ""
    """What the profile is for, for people; the agent does not use it."""
    indicators: Annotated[dict[Annotated[IndicatorName, Text], IndicatorModel], Field(min_length=1)]
    """Sweet points by indicator, all of them: none comes from the profile default; a channel
    without an indicator is left alone."""
    sched_idle: bool = True
    """Whether best-effort work is sched-idle while a service with this profile runs."""
    be_share_min: Annotated[float, RATIO] = raw_default("20%")
    """Least share of best-effort work in the harm that justifies a squeeze; raise it to squeeze
    less often."""
    idle_below: Annotated[float, RATIO] = raw_default("0.5%")
    """CPU use, as a share of one CPU, below which the service is idle and demands nothing."""
    channels: Annotated[list[Annotated[Channel, Text]], Field(min_length=1)] = raw_default(
        [str(channel) for channel in Channel]
    )
    """Channels on which best-effort work may be squeezed for the service."""
    cpu_burst: Annotated[int, duration("0s", "1s")] = raw_default("0s")
    """Unused quota that the service may save for a burst, per period; 0s leaves its burst alone."""
    resctrl_class: Annotated[str, CLASS_NAME] | None = None
    """Class of resctrl.classes with the service's own cache ways and memory bandwidth."""
    io_class: Annotated[str, CLASS_NAME] | None = None
    """Class of io.classes with the weight and limits of the service's own workloads for disks."""
    knobs: dict[Annotated[Knob, Text], KnobModel] = raw_default({})
    """Floor and speed by graded knob; a knob that is not named has its defaults."""
    evict: EvictModel = raw_default({})
    """When best-effort work is evicted for the service."""


class WorkloadModel(Strict):
    """One or more cgroups with a common name and class; ``cgroup`` is a glob per path component."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,252}$")]
    """Name of the workload in log, metrics and commands; of a pattern, the first part of each
    name."""
    cgroup: str
    """Path below the cpu hierarchy; *, ? and [...] match within one component, each match is a
    workload."""
    qos: Annotated[QosClass, Text] = Field(alias="class")
    """What may be done: latency-sensitive is protected, best-effort may be squeezed, system is
    only measured."""
    service: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of the service that the workload belongs to; give several workloads one name to join
    them."""
    profile: str | None = None
    """Profile with the sweet points of a latency-sensitive workload."""
    core_group: Annotated[str, CORE_GROUP] | None = None
    """Best-effort workloads of one group may share cores when cookies keep them off the
    services' cores."""


class ConfigModel(Strict):
    """The configuration file; without ``kubernetes`` it must have at least one workload."""

    mode: Annotated[Mode, Text] = Mode.OBSERVE
    """Whether knobs are written: observe only reports what would be done, enforce does it."""
    tick: Annotated[int, duration("50ms", "10s")] = raw_default("200ms")
    """Time between two control decisions; lengthen it to lower the agent's own CPU use."""
    looks: bool = True
    """Whether control decisions are left out while no service is near its sweet point and nothing
    else needs one."""
    state_dir: str = DEFAULT_STATE_DIR
    """Directory of lock, journal and compiled programs; it must survive the agent but not a
    reboot."""
    data_dir: str = "/var/lib/sweetpoint"
    """Directory of history, learned sweet points and what else outlives a reboot."""
    http: str = "127.0.0.1:9464"
    """Address of the status page and metrics as HOST:PORT, or off."""
    http_token_file: str | None = None
    """File with the bearer token that the pages require; set it when others can reach the
    address."""
    reserve: Annotated[float, cpus("0cpu", "1024cpu")] = raw_default("100mcpu")
    """CPUs that best-effort work never gets while it is squeezed; raise it for services with
    sudden load."""
    safe_state: Annotated[SafeState, Text] = SafeState.STATIC
    """What holds without fresh data: static keeps sched-idle only, restore undoes all, floor
    squeezes to the floors."""
    workloads: list[WorkloadModel] = raw_default([])
    """Cgroups of this host that are workloads, and the class of each."""
    profiles: list[Annotated[str, Field(min_length=1)]] = raw_default([])
    """Further profile files, relative to this file; one with the name of a shipped profile
    replaces it."""
    replace_profiles: Replacements = raw_default({})
    """Profile that services get in place of another, by the name of the other; policies set it."""
    service_level: ServiceLevelModel | None = None
    """Where the services' own figures, such as request latencies, are read."""
    network: NetworkModel | None = None
    """Links that are divided among system, latency-sensitive and best-effort work; without it no
    link is touched."""
    resctrl: ResctrlModel = raw_default({})
    """How cache ways and memory bandwidth are measured and limited, of best-effort work and by
    class."""
    memory: MemoryModel = raw_default({})
    """How the memory of best-effort work is limited, so that the kernel kills nothing else."""
    io: IoModel = raw_default({})
    """Disks on which best-effort work may be limited, and classes of services for disks."""
    core_scheduling: CoreSchedulingModel = raw_default({})
    """When cookies keep best-effort work off the cores that services run on."""
    law: LawModel = raw_default({})
    """Parts of the control law, each of which can be switched off to measure what it brings."""
    counters: CountersModel = raw_default({})
    """The perf event behind each hardware counter; change it where the generic event does not
    exist."""
    budget: BudgetModel = raw_default({})
    """CPU and memory that the agent itself may use."""
    history: HistoryModel = raw_default({})
    """What is kept on disk of past ticks for explain, advise and replay."""
    nri: NriModel = raw_default({})
    """How the container runtime tells of containers that are about to run."""
    trial: TrialModel = raw_default({})
    """Trials of what enforcing or a policy brings, which the agent begins by itself."""
    kubernetes: KubernetesModel | None = None
    """This host is a node of a Kubernetes cluster, and its workloads are pods."""
    eviction: EvictionModel = raw_default({})
    """What happens to workloads of this file when a profile evicts, on a host without
    Kubernetes."""
    node_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=256)] = raw_default({})
    """Labels of this host for the policies, on a host without Kubernetes."""
    policies: Annotated[list[PolicyModel], Field(max_length=MAX_POLICIES)] = raw_default([])
    """Keys with other values on some nodes and at some times; a later entry wins over an earlier
    one."""
