# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a command again and again in parallel; run as a program: OUTPUT WORKERS COMMAND...

On SIGTERM OUTPUT gets the number of runs that have ended well.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Run the command until SIGTERM."""
    output, workers, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    counts = [0] * workers

    def work(number: int) -> None:
        while True:
            done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            counts[number] += done.returncode == 0

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for number in range(workers):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    with open(output, "w", encoding="ascii") as file:
        file.write(str(sum(counts)))
    os._exit(0)


if __name__ == "__main__":
    main()
