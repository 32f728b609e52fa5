# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A service as a FIFO queue with several workers, request by request.

Time is warped: a worker that runs at a speed s does s seconds of work in a second, and all workers
of a service have the same speed at a moment. In warped time the speed is 1, so the recursion of
Kiefer and Wolfowitz (1955) is exact: a request starts when it has arrived and the worker that is
free first is free.
"""

from heapq import heapify, heapreplace

import numpy as np

from controller.simulation.machine import Array

__all__ = ("RequestQueue", "draw_arrivals")


def draw_arrivals(rate: Array, step_s: float, random: np.random.Generator) -> Array:
    """Return the arrival times of a Poisson process whose rate is *rate* per second in each step.

    By inversion of the integrated rate (Cinlar, 1975).
    """
    done = np.concatenate(([0.0], np.cumsum(rate * step_s)))
    count = random.poisson(done[-1])
    times = np.arange(len(done)) * step_s
    return np.asarray(np.interp(np.sort(random.random(count)) * done[-1], done, times))


class RequestQueue:
    """A FIFO queue of requests before *workers* equal workers.

    ``advance`` takes one step. ``backlog_s`` is the work that is unfinished.
    """

    __slots__ = ("_arrived", "_finish", "_free", "_now", "_warped", "workers")

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._free = [0.0] * workers
        heapify(self._free)
        self._now = 0.0
        self._warped = 0.0
        self._arrived = np.empty(0)  # of the requests in the system
        self._finish = np.empty(0)  # of the same, warped

    @property
    def backlog_s(self) -> float:
        """Work of the requests in the system that is not done, in seconds at speed 1."""
        return sum(free - self._warped for free in self._free if free > self._warped)

    def ages(self) -> Array:
        """Return the ages in s of the requests in the system."""
        return np.asarray(self._now - self._arrived)

    def advance(self, edges: Array, speed: Array, arrivals: Array, work: Array) -> Array:
        """Advance to the last of *edges* and return the latencies of the requests that finished.

        *speed* is that of each row between two edges. *arrivals* lie within the edges, *work* is
        theirs in seconds at speed 1.
        """
        warped = self._warped + np.concatenate(([0.0], np.cumsum(speed * np.diff(edges))))
        finish = self._serve(np.interp(arrivals, edges, warped), work)
        self._arrived = np.concatenate((self._arrived, arrivals))
        self._finish = np.concatenate((self._finish, finish))
        done = self._finish <= warped[-1]
        ended = np.interp(self._finish[done], warped, edges)
        latencies = ended - self._arrived[done]
        self._arrived, self._finish = self._arrived[~done], self._finish[~done]
        self._now, self._warped = float(edges[-1]), float(warped[-1])
        return np.asarray(latencies)

    def _serve(self, arrivals: Array, work: Array) -> Array:
        free = self._free
        finish = []
        for arrival, needed in zip(arrivals.tolist(), work.tolist(), strict=True):
            first = free[0]
            end = (arrival if arrival > first else first) + needed
            heapreplace(free, end)
            finish.append(end)
        return np.array(finish)
