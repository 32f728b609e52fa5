# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Indicators to demands to knob settings; knob state; eviction policy."""
