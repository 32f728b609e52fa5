# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML page of an agent, a replay and the demonstration, made by one renderer; pure."""
