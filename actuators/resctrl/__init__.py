# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuators of the resctrl file system: mount, groups, schemata; and the tasks of groups."""
