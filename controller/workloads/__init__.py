# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The workloads of this host: cgroups that the configuration names, and pods."""
