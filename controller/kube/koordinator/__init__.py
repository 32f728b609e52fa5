# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Import of Koordinator's ``slo-controller-config`` as a configuration and a profile."""
