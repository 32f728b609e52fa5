# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Metric families of ``/metrics``, one module per subject, and the text format."""
