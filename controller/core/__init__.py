# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The decision, pure: no clock, file, thread or log.

Vocabulary, indicators, controllers and the planner. Time is an argument, so a recording replays to
the same plans.
"""
