# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The reasons of Events of agents and rollouts, each with the sentence that says what happened."""

from typing import Self

from controller.core.names import Explained

__all__ = ("Reason",)

_SERVICE = "Pod of the service, or Node"


class Reason(Explained):
    """The reason of an Event; ``about`` is the kind of object that the Event is about."""

    about: str

    # An enumeration cannot call that of its base, which is replaced by the one for look-ups.
    def __new__(cls, value: str, about: str = "", meaning: str = "") -> Self:
        """Return the member of *value*."""
        member = str.__new__(cls, value)
        member._value_, member.about, member.meaning = value, about, meaning
        return member

    SQUEEZED = (
        "BestEffortSqueezed",
        _SERVICE,
        "A channel began to squeeze best-effort work for the service.",
    )
    RELEASED = "BestEffortReleased", _SERVICE, "The squeeze for the service ended."
    SLOW = (
        "ServiceSlow",
        _SERVICE,
        "The service is slow, and not because of best-effort work; the note has the evidence.",
    )
    EVICTED = (
        "Evicted",
        "Pod",
        "The pod was evicted; the note has the service, the channel and the evidence.",
    )
    EVICTED_FOR_MEMORY = (
        "EvictedForMemory",
        "Pod",
        "The pod was evicted because the node ran out of memory; the note has the figures.",
    )
    TOO_LATE = "EvictionTooLate", "Pod", "The pod had ended when its eviction was requested."
    REFUSED = (
        "EvictionRefused",
        "Pod",
        "The API server refused the eviction, for example because of a PodDisruptionBudget.",
    )
    UNANSWERED = (
        "EvictionUnanswered",
        "Pod",
        "The API server did not answer the request for the eviction, and may have executed it.",
    )
    HELD = (
        "EvictionHeld",
        "Pod",
        "The eviction was not requested: too many requests wait, or its evidence is old.",
    )
    WOULD_EVICT = (
        "WouldEvict",
        "Pod",
        "The pod would have been evicted, but evictions are off or the agent only observes.",
    )
    PROFILES_APPLIED = "ProfilesApplied", "ConfigMap", "The profiles of the ConfigMap are in force."
    PROFILES_REFUSED = (
        "ProfilesRefused",
        "ConfigMap",
        "The ConfigMap has a mistake, and the profiles stay as they were.",
    )
    PROFILES_MISSING = (
        "ProfilesMissing",
        "ConfigMap",
        "The ConfigMap does not exist, and the profiles stay as they were.",
    )
    SOURCE = (
        "SourceDegraded",
        "Node",
        "The agent lacks what control rests on; the note says why and what to do.",
    )
    LABEL = (
        "LabelIgnored",
        "Pod",
        "A label, annotation or rule for the pod has no effect; the note says which and why.",
    )
    PAUSED = "ProtectionPaused", "Node", "An administrator paused the agent."
    RESUMED = "ProtectionResumed", "Node", "The pause of the agent ended."
    ROLLOUT_PENDING = "RolloutPending", "ConfigMap", "The rollout waits for its canary nodes."
    ROLLOUT_CANARY = "RolloutCanary", "ConfigMap", "The canary nodes try the candidate."
    ROLLOUT_LEFT_OUT = (
        "RolloutTrialsLeftOut",
        "ConfigMap",
        "Trials of canary nodes do not count; the note says of how many nodes and why.",
    )
    ROLLOUT_SOAKING = (
        "RolloutSoaking",
        "ConfigMap",
        "The candidate met its criterion, which must hold for the time of the soak.",
    )
    ROLLOUT_PROMOTED = (
        "RolloutPromoted",
        "ConfigMap",
        "The candidate becomes the profile that it replaces; the note has the verdicts of nodes.",
    )
    ROLLOUT_ROLLED_BACK = (
        "RolloutRolledBack",
        "ConfigMap",
        "The candidate is removed from the profiles; the note says why.",
    )
