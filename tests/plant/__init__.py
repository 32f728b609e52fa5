# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated node that shares nothing with ``controller.simulation``, to judge the control law.

Two plants that were written apart do not err in the same way. A change of the law that gains on one
of them and loses on the other one is fitted to a plant. Run it with ``python -m tests.plant``.
"""
