# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Graded knobs, one rung each."""
