# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Questions to the history: finds the workload or service of a name, and its story."""

from pathlib import Path

from controller.agent.history.incidents import Coverage
from controller.agent.history.reader import HistoryReader
from controller.agent.history.records import MOMENTS
from controller.agent.history.service_story import ServiceStory
from controller.agent.history.story import Story
from controller.agent.history.workload_story import WorkloadStory
from controller.core.model import QosClass
from controller.host.names import similar

__all__ = ("Answer", "UnknownNameError", "ask")


class UnknownNameError(Exception):
    """The history has no workload or service of this name; ``close`` are similar ones."""

    def __init__(self, name: str, close: list[str]) -> None:
        super().__init__(name)
        self.close = close


class Answer:
    """The story of *name*, which is a ``service`` or a best-effort (or system) workload."""

    def __init__(self, name: str, qos: QosClass, story: Story, problems: list[str]) -> None:
        self.name = name
        self.qos = qos
        self.story = story
        self.problems = problems

    @property
    def is_service(self) -> bool:
        """Whether the story is that of a service."""
        return self.qos is QosClass.LS


def ask(data_dir: Path, name: str, since_ns: int, until_ns: int) -> Answer:
    """Return the story of *name* from *since_ns* to *until_ns* (ns since 1970).

    *name* is a workload's or service's, or what comes after the last ``/`` of one, if only one has
    it. Of a latency-sensitive workload it is the story of its service.

    :raises UnknownNameError: there is none.
    :raises OSError: there is no history, or it does not belong to root alone.
    """
    workload = WorkloadStory(name, Coverage(since_ns, until_ns))
    reader = HistoryReader(data_dir, MOMENTS)
    workload.read(reader.lines())
    known = workload.known
    exact = known.get(name) or next(
        (w for w in known.values() if name in (w.service, w.whole_name)), None
    )
    if exact is not None and exact.qos is not QosClass.LS:
        return Answer(name, exact.qos, workload, reader.problems)
    if exact is not None:
        service = ServiceStory(exact.service, Coverage(since_ns, until_ns))
        service.read(HistoryReader(data_dir, MOMENTS).lines())
        return Answer(exact.service, exact.qos, service, reader.problems)
    names = {*known, *(each.whole_name for each in known.values())}
    names |= {each.service for each in known.values() if each.qos is QosClass.LS}
    short = [each for each in names if each.rpartition("/")[2] == name]
    if len(short) == 1:
        return ask(data_dir, short[0], since_ns, until_ns)
    close = sorted(short) or similar(name, names)
    raise UnknownNameError(name, close)
