# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What best-effort work does to services: the use of resources, the harm model, the cut."""
