# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The demonstration: real programs side by side, alone, unmanaged and managed.

``command`` is the entry point. Nothing here is imported by the agent.
"""
