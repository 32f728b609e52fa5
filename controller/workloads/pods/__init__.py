# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods as workloads: parsing, classification, cgroups, requests. The input is hostile."""
