# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that talks to the Kubernetes API server; never in the control thread."""
