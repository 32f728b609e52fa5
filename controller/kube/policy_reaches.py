# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The annotation by which a rollout puts policies in force on all nodes, or on none.

It is one of the ConfigMap of the profiles, which all agents watch.
"""

from collections.abc import Mapping
import contextlib
import json
import re

from controller.config.rollout_reach import Reach
from controller.config.sections.policies import MAX_POLICIES, POLICY
from controller.config.yaml_document import ConfigError

__all__ = ("REACHES_KEY", "decode_reaches", "encode_reaches")

REACHES_KEY = "sweetpoint.dev/policies"
_MAX_CHARS = 4096


def encode_reaches(reaches: Mapping[str, Reach]) -> str:
    """Return the text of the annotation for *reaches* by the names of policies."""
    return json.dumps({**reaches}, sort_keys=True)


def decode_reaches(text: object) -> Mapping[str, Reach]:
    """Return what the annotation says; nothing without one.

    :raises ConfigError: it is none that a rollout writes.
    """
    if text is None or text == "":
        return {}
    found: Mapping[str, Reach] = {}
    if isinstance(text, str) and len(text) <= _MAX_CHARS:
        with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
            found = {name: Reach(reach) for name, reach in json.loads(text).items()}
    if not 0 < len(found) <= MAX_POLICIES or not all(re.fullmatch(POLICY, each) for each in found):
        problem = f'annotation {REACHES_KEY}: must be like {{"canary": "everywhere"}}'
        raise ConfigError([problem])
    return found
