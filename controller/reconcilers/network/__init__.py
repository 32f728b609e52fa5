# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shaped links, filters at the veths of pods, and bandwidth limits of single pods."""
