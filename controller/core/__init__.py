# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The decision: vocabulary, indicators, controllers and the planner.

The package is pure: it uses no clock, file, thread or log. Time is an argument, so a recording
replays to the same plans.
"""
