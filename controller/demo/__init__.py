# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The demonstration: real programs side by side, alone, unmanaged and managed; a simulated node.

It may start processes and cgroups of its own. The agent imports nothing of it.
"""
