# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Events that an agent creates in the cluster; tests compare the reasons with the sources."""

from collections.abc import Iterator

from tools.reference.markdown import code, table

__all__ = ("EVENTS", "events")

# (reason, objects, meaning)
EVENTS = (
    ("BestEffortSqueezed", "Pod of the service, else Node", "a channel began to squeeze for it"),
    ("BestEffortReleased", "Pod of the service, else Node", "the squeeze ended"),
    ("Evicted", "Pod", "evicted, with the service, the channel and the evidence"),
    ("EvictionTooLate", "Pod", "it had ended when its eviction was requested"),
    ("EvictionRefused", "Pod", "the API server refused, as for a PodDisruptionBudget"),
    ("EvictionUnanswered", "Pod", "the API server did not answer"),
    ("EvictionHeld", "Pod", "not requested: too many requests wait, or its evidence is old"),
    ("WouldEvict", "Pod", "it would have been evicted, but evictions are off or only observed"),
    ("ProfilesApplied", "ConfigMap", "its profiles are in force"),
    ("ProfilesRefused", "ConfigMap", "it has a mistake; the profiles stay as they were"),
    ("ProfilesMissing", "ConfigMap", "it does not exist; the profiles stay as they were"),
    ("ProtectionPaused", "Node", "an administrator paused the agent"),
    ("ProtectionResumed", "Node", "the pause ended"),
)


def events() -> Iterator[str]:
    """Yield the table of Events."""
    yield from table(
        ("reason", "object", "meaning"),
        ((code(reason), about, meaning) for reason, about, meaning in EVENTS),
    )
