# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The candidate of a trial: a policy of a file of its own, without nodes and times.

It is checked as a policy that the configuration has as its last one, so it wins over the others.
"""

from dataclasses import dataclass, replace
import hashlib
import json
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.fields import FieldInfo

from controller.config.fields import Strict, check, model_in
from controller.config.sections.policies import MAX_POLICIES, POLICY, PolicySetModel
from controller.config.yaml_document import ConfigError, Document, parse_document

__all__ = ("Candidate", "add_candidate", "parse_candidate")


# What a policy sets and a candidate cannot, with the reason.
_NOT_OFFERED = {
    "mode": "the agent enforces with and without it",
    "trial": "one trial cannot begin another one",
}


class CandidateSetModel(PolicySetModel):
    """What a policy sets, without what is the same with a candidate and without it."""

    not_offered: ClassVar[tuple[str, ...]] = tuple(_NOT_OFFERED)


class CandidateModel(Strict):
    """A policy whose begin and end are those of a block of a trial."""

    unknown_key: ClassVar[str] = "a candidate has a name and what it sets"

    name: Annotated[str, Field(pattern=POLICY)]
    """Name of the candidate; no policy of the configuration may have it."""
    changes: CandidateSetModel = Field(alias="set")
    """Keys of the configuration that have another value with the candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A checked file of a candidate. ``digest`` changes with what it sets.

    It is in force until ``until_s``, in seconds since 1970; ``None``: it is only checked.
    """

    name: str
    document: Document
    digest: str
    until_s: float | None = None


def parse_candidate(text: str, origin: str, until_s: float | None = None) -> Candidate:
    """Return the candidate of the file *origin* with *text*.

    :raises ConfigError: it is not a policy with a name, or sets what a candidate cannot set.
    """
    document = parse_document(text, origin)
    can_set = f"a candidate can set: {_settable()}"
    try:
        model = check(document, CandidateModel)
    except ConfigError as error:
        raise ConfigError([*error.problems, can_set]) from None
    for key, why in _NOT_OFFERED.items():
        if getattr(model.changes, key) is not None:
            raise ConfigError([document.problem(("set", key), why), can_set])
    data: Any = document.data
    canonical = json.dumps(data["set"], sort_keys=True)
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return Candidate(name=model.name, document=document, digest=digest, until_s=until_s)


def _settable() -> str:
    fields = CandidateSetModel.model_fields.items()
    left_out = CandidateSetModel.not_offered
    return ", ".join(_with_inner(name, field) for name, field in fields if name not in left_out)


def _with_inner(name: str, field: FieldInfo) -> str:
    """Return the key *name*, if it is a section with its keys in braces."""
    section = model_in(field.annotation)
    if section is None:
        return name
    return f"{name}: {{{', '.join(_with_inner(*each) for each in section.model_fields.items())}}}"


def add_candidate(document: Document, candidate: Candidate) -> Document:
    """Return *document* with *candidate* as its last policy.

    :raises ConfigError: *document* has as many policies as it may have.
    """
    data = document.data
    policies = data.get("policies", []) if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(policies, list):
        return document  # its own check says what is wrong
    if len(policies) == MAX_POLICIES:
        why = f"the trial needs one of the {MAX_POLICIES} policies for its candidate: remove one"
        raise ConfigError([document.problem(("policies",), why)])
    return replace(
        document,
        data={**data, "policies": [*policies, candidate.document.data]},
        added={("policies", len(policies)): candidate.document},
    )
