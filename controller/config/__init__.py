# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Configuration and profile files, read into frozen records.

This package reads files and raises ``ConfigError``, nothing else.
"""
