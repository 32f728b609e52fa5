# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Kernel objects that outlive one write, kept in line with the workloads.

Resctrl groups, core-scheduling cookies, shaped links, frozen cgroups. They write through actuators
only and do not import each other.
"""
