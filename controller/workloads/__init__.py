# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The workloads of this host: cgroups named in the configuration, and pods."""
