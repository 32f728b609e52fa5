# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resctrl file system: groups, schemata, tasks, mount."""
