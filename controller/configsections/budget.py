# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``budget:``, what the agent itself may cost."""

from dataclasses import dataclass
from typing import Annotated

from controller.configfields import Quantity, Strict, cpus, written
from controller.units import parse_bytes

__all__ = ("BudgetConfig", "BudgetModel", "build_budget")

_MEMORY = Quantity(parse_bytes, r"^[0-9]+(\.[0-9]+)? *(kB|MB|GB|KiB|MiB|GiB)$", "1MiB", "64GiB")


class BudgetModel(Strict):
    """Over the CPU budget, detail is shed; over the memory budget, a warning is given."""

    cpu: Annotated[float, cpus("1mcpu", "1024cpu")] = written("200mcpu")
    memory: Annotated[int, _MEMORY] = written("192MiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetConfig:
    """The checked section, in CPUs and bytes."""

    cpus: float
    memory_bytes: int


def build_budget(model: BudgetModel) -> BudgetConfig:
    """Return the checked section."""
    return BudgetConfig(cpus=model.cpu, memory_bytes=model.memory)
