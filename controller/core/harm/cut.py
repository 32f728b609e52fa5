# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sharing of a squeeze: which best-effort workload pays how much of it.

``relative_harm`` turns evidence into the harm that each workload does per CPU that it uses, and
``divide_harm`` divides a demand by it. The demand moves the harm of all workloads together from
that of the ceiling (0) to that of the floors (1), in equal factors for equal steps. The deviation
of a service is logarithmic in what hurts it, so a loop sees the same gain whether one of ten
workloads hurts or all of them do. If the demand moved the CPUs of all workloads instead, the last
steps before a culprit reaches its floor would be small steps of a large total, and the gain many
times higher. ``share_unused`` gives harmless workloads the CPUs that the others leave.

``allocate`` divides a resource for which the harm of single workloads is not known: memory, disks.
``share_by_request`` lets workloads that requested an amount want it in these proportions, and
``even_harm`` lets those be cut alike that hurt alike. ``lower_floors`` and ``parent_amounts`` are
for workloads that are too many for one amount each.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Set
import math
from typing import NamedTuple, TypeVar

from controller.core.knobs.grants import HARDLY_CUT, NOISE
from controller.core.model import CgroupId

__all__ = (
    "LEAST_CPUS",
    "LEAST_HARM",
    "Claim",
    "Deeds",
    "allocate",
    "divide_harm",
    "even_harm",
    "lower_floors",
    "parent_amounts",
    "relative_harm",
    "share_by_request",
    "share_unused",
)

Key = TypeVar("Key")

# What each workload did, in any unit: wait that it inflicted, bytes that it moved.
Deeds = Mapping[CgroupId, float] | Mapping[Hashable, float]


class Claim(NamedTuple):
    """A part of the squeeze: how much it counts, and the evidence for it.

    ``use`` is the CPUs that the workloads used in the time of the ``deeds``.
    """

    weight: float
    deeds: Deeds
    use: Mapping[CgroupId, float]


# Work that uses less is asleep: one busy thread is seen in its first tick, although the use is
# averaged over two seconds.
LEAST_CPUS = 0.02
# Harm below this part is none: of the largest harm, or of the time that a service takes.
LEAST_HARM = 0.02


def relative_harm(
    claims: Iterable[Claim], wants: Mapping[CgroupId, float]
) -> dict[CgroupId, float]:
    """Return the harm per CPU of each workload in *wants*, as a part of the largest, above 0.

    Deeds per use hardly change when a workload is squeezed, unlike the deeds themselves, so a
    culprit does not become innocent by being squeezed. Every claim counts by its weight alone: a
    service that waits little counts as much as one that waits for many CPUs. A claim without deeds
    counts against all, equally per use. Evidence may be wrong: what seems harmless has the least
    harm, is cut last, and not spared at full demand.
    """
    harm = dict.fromkeys(wants, 0.0)
    for weight, deeds, use in claims:
        # For less use than the least the quotient would be noise.
        per_use = {
            cgroup: deeds.get(cgroup, 0.0) / (use.get(cgroup, 0.0) + LEAST_CPUS) for cgroup in wants
        }
        largest = max(per_use.values(), default=0.0)
        for cgroup, each in per_use.items():
            harm[cgroup] += weight * (each / largest if largest > 0 else 1.0)
    largest = max(harm.values(), default=0.0)
    return {
        cgroup: max(LEAST_HARM, each / largest) if largest > 0 else 1.0
        for cgroup, each in harm.items()
    }


def divide_harm(
    demand: float,
    ceiling: float,
    wants: Mapping[Key, float],
    least: Mapping[Key, float],
    harm: Mapping[Key, float],
) -> dict[Key, float]:
    """Return the amount for each key of *wants* at *demand* in [0, 1].

    At demand 0 the *ceiling* is divided in proportion to the wants, at demand 1 every key has its
    *least*. In between every amount is its want times (least / want) to the power of its *harm*
    times a number that is the same for all, at most 1: the one at which the harm of all amounts
    together is what the demand asks for.
    """
    wanted = sum(wants.values())
    if wanted <= 0:
        return {}
    scale = ceiling / wanted
    terms = [(harm[key], max(least[key], scale * want), least[key]) for key, want in wants.items()]
    start = sum(each * most for each, most, _ in terms)
    end = sum(each * low for each, _, low in terms)
    target = start * math.pow(end / start, demand) if 0 < end < start else end
    if demand >= 1.0:
        return {key: low for key, (_, _, low) in zip(wants, terms, strict=True)}
    power = _power_for(target, [(each, most, _range(most, low)) for each, most, low in terms])
    return {
        key: most * math.exp(-min(1.0, power * each) * _range(most, low))
        for key, (each, most, low) in zip(wants, terms, strict=True)
    }


def allocate(
    total: float, wants: Mapping[Key, float], least: Mapping[Key, float]
) -> dict[Key, float]:
    """Divide *total* among the keys of *wants*; each is cut by the same part of what it may lose.

    No key gets less than its *least*. A total above the sum of the wants is divided in proportion
    to them.
    """
    wanted = sum(wants.values())
    if wanted <= 0:
        return {}
    if total >= wanted:
        return {key: want * total / wanted for key, want in wants.items()}
    room = {key: max(0.0, want - least[key]) for key, want in wants.items()}
    left = sum(room.values())
    cut = min(wanted - total, left)
    amounts = dict(wants)
    for key, each in room.items():
        if each > 0 and min(cut, left) > 0:
            # Of what is left, so that rounding is as in recorded plans.
            part = min(each, cut * each / left)
            amounts[key] -= part
            cut -= part
            left -= each
    return amounts


def share_unused(
    amounts: Mapping[Key, float], ceiling: float, wants: Mapping[Key, float], harmless: Set[Key]
) -> dict[Key, float]:
    """Return *amounts* with what they leave of the *ceiling* for the *harmless*, up to their wants.

    A workload that is squeezed leaves CPUs unused which the ceiling was divided for. Only harmless
    workloads that are hardly cut get some of them.
    """
    wanted = sum(wants.values())
    scale = min(1.0, ceiling / wanted) if wanted > 0 else 1.0
    room = {
        key: max(0.0, wants[key] - amount)
        for key, amount in amounts.items()
        if key in harmless and amount >= (1 - HARDLY_CUT) * scale * wants[key]
    }
    missing, unused = sum(room.values()), ceiling - sum(amounts.values())
    if missing <= 0 or unused <= 0:
        return dict(amounts)
    part = min(1.0, unused / missing)
    return {key: amount + part * room.get(key, 0.0) for key, amount in amounts.items()}


def share_by_request(
    wants: Mapping[Key, float], requests: Mapping[Key, float], most: Mapping[Key, float]
) -> dict[Key, float]:
    """Return *wants* with those of *requests*, all above 0, in proportion to them.

    Their sum stays, as far as none becomes larger than its *most*: what one does not want goes to
    the others.
    """
    keys = [key for key in wants if key in requests]
    shared = dict(wants)
    left, weight = sum(wants[key] for key in keys), sum(requests[key] for key in keys)
    # First those that reach their bound soonest.
    for key in sorted(keys, key=lambda key: most[key] / requests[key]):
        shared[key] = min(most[key], left * requests[key] / weight)
        left -= shared[key]
        weight -= requests[key]
    return shared


def even_harm(
    harm: Mapping[CgroupId, float], requests: Mapping[CgroupId, float]
) -> dict[CgroupId, float]:
    """Return *harm* with the geometric average of those of *requests* that are near it.

    Harm that is at most twice or at least half of the average is the same: it is an estimate.
    """
    logs = [math.log(each) for key, each in harm.items() if key in requests]
    average = math.exp(sum(logs) / len(logs)) if logs else 1.0
    return {
        key: average if key in requests and average / 2 <= each <= average * 2 else each
        for key, each in harm.items()
    }


def lower_floors(
    floors: Mapping[CgroupId, float], parents: Mapping[CgroupId, CgroupId], most: float
) -> dict[CgroupId, float]:
    """Return *floors*, those of workloads with one of *parents* lowered to their part of *most*.

    Unchanged as long as all of them together are at most *most*. A workload without a parent keeps
    its floor, so the sum is above *most* by what these have too much.
    """
    total = sum(floors.values())
    part = most / total if total > most else 1.0
    return {each: floor * part if each in parents else floor for each, floor in floors.items()}


def parent_amounts(
    wanted: Mapping[CgroupId, float],
    own: Mapping[CgroupId, float],
    parents: Mapping[CgroupId, CgroupId],
    before: Mapping[CgroupId, float],
    least: float,
) -> dict[CgroupId, float]:
    """Return the amount of each of *parents* whose workloads get too much together.

    A parent gets one when that is more than noise, and keeps it until it is far less: no write is
    repeated at the edge.

    :param wanted: what each workload is to get; *own* is what it gets where it is limited itself.
    :param before: the last result.
    :param least: the least amount that can be granted.
    """
    sums: dict[CgroupId, float] = defaultdict(float)
    given: dict[CgroupId, float] = defaultdict(float)
    for cgroup, amount in wanted.items():
        parent = parents.get(cgroup)
        if parent is not None:
            sums[parent] += amount
            given[parent] += own.get(cgroup, amount)
    amounts = {parent: max(least, amount) for parent, amount in sums.items()}
    return {
        parent: amount
        for parent, amount in amounts.items()
        if given[parent] > amount * (1 + (0.2 * NOISE if parent in before else NOISE))
    }


def _range(most: float, least: float) -> float:
    return math.log(most / least) if most > least > 0 else 0.0


def _power_for(target: float, terms: Iterable[tuple[float, float, float]]) -> float:
    """Return the number that gives the *target* harm; *terms* are harm, amount, log of its range.

    A bracketed Newton iteration on the logarithm of the harm, which is nearly linear in the number,
    to a thousandth of the harm.
    """
    terms = tuple(terms)
    low, high = 0.0, 1.0 / LEAST_HARM
    power = 0.0
    for _ in range(40):
        total = slope = 0.0
        for harm, amount, span in terms:
            part = harm * amount * math.exp(-min(1.0, power * harm) * span)
            total += part
            if power * harm < 1.0:
                slope += part * harm * span
        if abs(total - target) <= 1e-3 * target:
            break
        low, high = (power, high) if total > target else (low, power)
        step = total * math.log(total / target) / slope if slope > 0 else math.inf
        power = power + step if low < power + step < high else 0.5 * (low + high)
    return power
