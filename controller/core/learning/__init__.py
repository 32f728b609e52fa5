# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sweet points from measurements: what is normal for a service while nothing disturbs it."""
