# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sections of the configuration file: models and the records that are built from them."""
