# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Generator of docs/REFERENCE.md."""
