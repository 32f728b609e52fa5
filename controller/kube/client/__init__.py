# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The API client: transport, requests, lists and watches, rate limits, the worker thread."""
