# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What others read: the report of a tick, Prometheus metrics, HTTP pages."""
