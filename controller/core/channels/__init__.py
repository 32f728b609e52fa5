# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The channels: from the demand of their loops to the settings of their knobs."""
