# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The container runtime's side of the agent: it hears of containers before they run (NRI)."""
