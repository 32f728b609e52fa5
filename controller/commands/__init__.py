# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sub-commands: each says what it takes from the command line, and does it.

At their top they import nothing but the standard library: ``run`` becomes the guardian, which
has to stay small, and reading the command line imports all of them.
"""
