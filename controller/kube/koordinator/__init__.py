# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Conversion of Koordinator's ``slo-controller-config`` to a configuration and a profile."""
