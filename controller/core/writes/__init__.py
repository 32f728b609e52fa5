# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The writes of a tick, and the knobs that are on or off: sched-idle, cookies, burst."""
