# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuators of traffic control: qdiscs, classes and filters of shaped links and of veths."""
