# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a demand and an amount may move, in either direction."""
