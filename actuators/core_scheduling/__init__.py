# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Core-scheduling cookies, set by a helper process."""
