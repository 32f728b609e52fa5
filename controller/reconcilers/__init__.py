# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reconcilers: keep kernel objects that outlive one write in line with the workloads.

The objects are resctrl groups, core-scheduling cookies, shaped links and frozen cgroups. The
reconcilers write through actuators only and do not import each other.
"""
