# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API client: transport, requests, lists, watches, rate limits, worker thread."""
