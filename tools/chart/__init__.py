# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What of the Helm chart is generated: ``python -m tools.chart`` writes it."""
