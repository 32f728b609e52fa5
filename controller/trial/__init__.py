# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A randomised trial on a running node: blocks of enforcing next to blocks of pausing.

A trial only reads the pages of an agent and pauses it; the agent imports nothing of it.
"""
