# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A rollout of a profile that judges itself: canary nodes, a soak, promotion or roll-back.

One controller per cluster decides. Agents give figures of their own node and change nothing else.
"""
