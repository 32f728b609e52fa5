# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes side of the agent: watches, Events, the Node object, pod eviction, capacity.

Requests are made in the threads of watches and of a worker, never in the control thread.
"""
