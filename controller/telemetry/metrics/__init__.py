# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The families of ``/metrics``, one module per subject, and their text form."""
