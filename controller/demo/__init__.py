# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The demonstration: real programs or a simulated node, alone, unmanaged and managed.

The demonstration starts processes and creates cgroups of its own. The agent imports nothing of it.
"""
