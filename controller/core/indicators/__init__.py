# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From counters to indicators."""
