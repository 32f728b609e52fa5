# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard as code; ``python -m tools.dashboard`` generates it."""
