# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods as workloads: parsing, cgroups, classes, profiles, requests. The input is not trusted."""
