# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory that best-effort work may use, so that it takes down nothing else."""
