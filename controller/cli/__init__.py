# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per sub-command.

At module level these modules import the standard library only. Parsing the command line imports
all of them, and the process of ``run`` becomes the guardian, which has to stay small.
"""
