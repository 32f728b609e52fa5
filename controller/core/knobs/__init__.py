# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The state of every knob: as it was read, requested and granted, and what is held."""
