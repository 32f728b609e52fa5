# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shaped links, the filters of pods, and the limits that pods ask for."""
