# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Output of the agent: the report of a tick, Prometheus metrics, HTTP pages."""
