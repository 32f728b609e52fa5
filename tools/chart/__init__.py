# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Generator of files of the Helm chart; ``python -m tools.chart`` writes them."""
