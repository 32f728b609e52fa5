# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Seeded plants: a node without a kernel, to close the loop over the real planner."""
