# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuator of core-scheduling cookies; a helper process assigns them to tasks."""
