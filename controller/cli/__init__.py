# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per sub-command.

A module imports only the standard library at its top: ``run`` becomes the guardian, which has to
stay small, and reading the command line imports all of them.
"""
