# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Facts of this machine and raw kernel interfaces; standard library only."""
