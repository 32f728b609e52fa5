# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which best-effort workload is evicted and when."""
