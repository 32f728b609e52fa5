# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Comparison of what protects a service where memory is short, on a cgroup that is the node."""
