# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The lock of a state directory that another program removes or replaces."""

from collections.abc import Callable
import os
from pathlib import Path
import shutil

import pytest

from controller.host.state_dir import Lock, LockError, owners


def in_a_child(work: Callable[[], None]) -> None:
    """Run *work* in a fork, which shares the lock as the agent shares the guardian's."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def refuses_another(state: Path) -> bool:
    try:
        Lock(state).close()
    except LockError as error:
        return error.held
    return False


def replace(state: Path) -> None:
    state.rename(state.with_name("aside"))
    state.mkdir()


@pytest.mark.parametrize("lose", [shutil.rmtree, replace, lambda state: (state / "lock").unlink()])
def test_the_lock_of_a_new_file_is_taken(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    state = tmp_path / "state"
    lock = Lock(state)
    lock.set_owners([os.getpid(), os.getppid()])
    assert not lock.renew()
    lose(state)
    assert lock.renew()
    assert not lock.renew()
    assert refuses_another(state)
    assert owners(state) == [os.getpid(), os.getppid()]
    lock.close()
    assert not refuses_another(state)


def test_two_processes_with_one_lock_take_the_new_one_each(tmp_path: Path) -> None:
    state = tmp_path / "state"
    lock = Lock(state)
    shutil.rmtree(state)

    def as_the_agent() -> None:
        assert lock.renew()
        assert refuses_another(state)
        assert lock.fileno() >= 0

    in_a_child(as_the_agent)  # it has ended, and its part of the lock with it
    assert lock.renew()
    assert refuses_another(state)
    # Each holds the new file on its own: it stays locked while one of the two lives.
    in_a_child(lambda: lock.close())
    assert refuses_another(state)
    lock.close()


def test_a_directory_that_comes_back_is_locked_again(tmp_path: Path) -> None:
    state, aside = tmp_path / "state", tmp_path / "aside"
    lock = Lock(state)

    def there_and_back() -> None:
        replace(state)
        assert lock.renew()
        shutil.rmtree(state)
        aside.rename(state)
        lock.renew()
        lock.set_owners([os.getppid(), os.getpid()])
        assert owners(state) == [os.getppid(), os.getpid()]

    in_a_child(there_and_back)  # while this process holds the first file
    assert not lock.renew()
    assert refuses_another(state)
    there_and_back()
    assert refuses_another(state)
    lock.close()
    assert not refuses_another(state)


def test_many_losses_take_no_descriptors(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "state")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        shutil.rmtree(tmp_path / "state")
        assert lock.renew()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    lock.close()


def test_an_agent_that_came_first_is_an_error(tmp_path: Path) -> None:
    state = tmp_path / "state"
    lock = Lock(state)
    shutil.rmtree(state)
    other = Lock(state)
    with pytest.raises(LockError, match="already runs on this host") as error:
        lock.renew()
    assert error.value.held
    other.close()
    lock.close()


def test_a_directory_that_cannot_be_made_is_an_error_and_tried_again(tmp_path: Path) -> None:
    state = tmp_path / "state"
    lock = Lock(state)
    shutil.rmtree(state)
    state.write_text("")
    with pytest.raises(LockError, match="cannot open") as error:
        lock.renew()
    assert not error.value.held
    state.unlink()
    assert lock.renew()
    lock.close()
