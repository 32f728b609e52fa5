# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that move the knobs of a simulated node: published ones, and the planner."""
