# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs that may be hostile: examples, mutations, and a check of what becomes of them."""

from collections.abc import Mapping

from tests.support.hostile.subjects import files, messages, objects
from tests.support.hostile.subjects.subject import Subject

__all__ = ("SUBJECTS", "Subject")

SUBJECTS: Mapping[str, Subject] = {**files.SUBJECTS, **objects.SUBJECTS, **messages.SUBJECTS}
