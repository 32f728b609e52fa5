# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resctrl control group of best-effort work, and the monitoring groups of workloads."""
