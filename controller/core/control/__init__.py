# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From indicators to demands to knob settings; the state of the knobs; the eviction policy."""
