# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The rungs of the ladders: one class for each graded knob."""
