# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes at request level, and other published policies beside the planner on them."""
