# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's own budget: what it may cost, and what it does without when it costs more.

CPU is that of all its processes and, while the kernel counts it, of its BPF programs. Detail is
shed one by one in a fixed order, and comes back when there has been room for it for long. Memory
cannot be shed: being over it is said.
"""

from controller.units import NS_PER_SEC

__all__ = ("Budget",)

_PERIOD_NS = 10 * NS_PER_SEC
# Below this part of the budget for as long as the patience, a detail is tried again.
_ROOM = 0.8
_PATIENCE_NS = 600 * NS_PER_SEC
_LONGEST_NS = 4 * 3600 * NS_PER_SEC


class Budget:
    """Follows the CPU time spent.

    :param cpus: what may be spent, in CPUs.
    :param details: names of what can be done without, the first one first.

    ``shed`` is how many of them are done without now, ``used_cpus`` the use in the last whole
    period of ten seconds, ``verdict`` a sentence when ``shed`` has just changed.
    """

    __slots__ = (
        "_details",
        "_patience_ns",
        "_quiet_ns",
        "_since_ns",
        "_spent_ns",
        "cpus",
        "shed",
        "used_cpus",
        "verdict",
    )

    def __init__(self, cpus: float, details: tuple[str, ...]) -> None:
        self.cpus = cpus
        self._details = details
        self._since_ns: int | None = None
        self._spent_ns = 0
        # Since when there has been room, and how long that must last.
        self._quiet_ns: int | None = None
        self._patience_ns = _PATIENCE_NS
        self.shed = 0
        self.used_cpus: float | None = None
        self.verdict = ""

    @property
    def without(self) -> tuple[str, ...]:
        """What is done without now."""
        return self._details[: self.shed]

    def update(self, now_ns: int, spent_ns: int) -> bool:
        """Take the CPU time *spent_ns* since the start; return whether ``shed`` changed.

        The first call only bases it: compiling the probes is not counted.
        """
        self.verdict = ""
        if self._since_ns is None:
            self._since_ns, self._spent_ns = now_ns, spent_ns
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns < _PERIOD_NS:
            return False
        self.used_cpus = (spent_ns - self._spent_ns) / elapsed_ns
        self._since_ns, self._spent_ns = now_ns, spent_ns
        before = self.shed
        if self.used_cpus > self.cpus:
            self._quiet_ns = None
            if self.shed < len(self._details):
                self.shed += 1
                self._say(f"without {self._details[self.shed - 1]} from now on")
        elif self.used_cpus > _ROOM * self.cpus or not self.shed:
            self._quiet_ns = None
        else:
            self._try_again(now_ns)
        return self.shed != before

    def _try_again(self, now_ns: int) -> None:
        if self._quiet_ns is None:
            self._quiet_ns = now_ns
        if now_ns - self._quiet_ns >= self._patience_ns:
            self._quiet_ns = None
            # If it has to go again, the next trial comes later.
            self._patience_ns = min(2 * self._patience_ns, _LONGEST_NS)
            self.shed -= 1
            self._say(f"with {self._details[self.shed]} again")

    def _say(self, what: str) -> None:
        used = (self.used_cpus or 0.0) * 1000
        self.verdict = f"own cost {used:.0f}mcpu of {self.cpus * 1000:.0f}mcpu: {what}"
