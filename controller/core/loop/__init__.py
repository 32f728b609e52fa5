# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The loops of a channel: deviation, evidence, demand and its pace, and the effect of a squeeze."""
