# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Figures that services report of themselves: polled pages and pushed messages."""
