# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster: watches, Events, the node object, pod eviction, capacity, profiles.

Every request is made in a worker thread, never in the control thread.
"""
