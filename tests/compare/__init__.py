# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``make compare``: real services beside real jobs under sweetpoint and under other rules."""
