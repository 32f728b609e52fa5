# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The loops of a channel: deviation, evidence, demand, and whether a squeeze helped."""
