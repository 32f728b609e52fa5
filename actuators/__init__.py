# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuators: one per knob, to read, write and undo it; the executor and its journal."""
