# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Traffic control: qdiscs, classes and filters of shaped links."""
