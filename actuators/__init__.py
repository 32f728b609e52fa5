# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One knob each: read, write, undo; the executor and its journal."""
