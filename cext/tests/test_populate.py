"""Pages that are faulted in beside the program."""

import mmap
import os
import platform
import time
from collections.abc import Callable, Iterator

import pytest
from dlpack import Consumed

from overmind_cext import map_arena, start_populating

HUGE = 2 << 20
NBYTES = 96 << 20
COLLAPSE = 25  # MADV_COLLAPSE
LATER = 2

pytestmark = pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (6, 1), reason="MADV_COLLAPSE makes the huge pages of these tests"
)


@pytest.fixture
def huge(memfd: Callable[..., int]) -> int:
    """A memfd of huge pages."""
    fd = memfd(NBYTES)
    mapping = Consumed(map_arena(fd, NBYTES))
    with mmap.mmap(fd, NBYTES) as shared:
        shared[:: mmap.PAGESIZE] = b"x" * (NBYTES // mmap.PAGESIZE)
        try:
            advise(mapping.address, COLLAPSE)
        except OSError as e:
            pytest.skip(f"no huge pages to be had: {e.strerror}")
        finally:
            mapping.release()
    return fd


def advise(address: int, advice: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(NBYTES), advice) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def resident(address: int) -> int:
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if line.startswith(f"{address:x}-"):
                break
        return next(int(line.split()[1]) * 1024 for line in smaps if line.startswith("Rss:"))


def eventually(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + 30
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


@pytest.fixture
def mapped() -> Iterator[Callable[[int, int], Consumed]]:
    made: list[Consumed] = []

    def make(fd: int, nbytes: int = NBYTES, populate: int = LATER) -> Consumed:
        made.append(Consumed(map_arena(fd, nbytes, populate=populate)))
        return made[-1]

    yield make
    for mapping in made:
        mapping.release()


def test_huge_pages_come_by_themselves(huge, mapped):
    first, second, unasked = mapped(huge), mapped(huge), mapped(huge, populate=0)
    assert resident(first.address) == 0  # not before it is told to
    start_populating()
    assert eventually(lambda: resident(first.address) == resident(second.address) == NBYTES)
    assert resident(unasked.address) == 0


def test_nothing_changes_in_them(huge, mapped):
    mapping = mapped(huge)
    start_populating()
    assert eventually(lambda: resident(mapping.address) == NBYTES)
    assert mapping.read()[:: mmap.PAGESIZE] == b"x" * (NBYTES // mmap.PAGESIZE)


def test_small_pages_are_left_to_those_who_use_them(memfd, huge, mapped):
    fd = memfd(NBYTES)
    os.posix_fallocate(fd, 0, NBYTES)
    small, last = mapped(fd), mapped(huge)
    start_populating()
    assert eventually(lambda: resident(last.address) == NBYTES)  # taken after the other one
    assert 0 < resident(small.address) < NBYTES // 2


def test_without_arenas_there_is_no_thread(huge, mapped):
    mapped(huge, populate=0), mapped(huge, populate=1)
    before = threads()
    start_populating()
    assert threads() == before


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_the_thread_ends(huge, mapped):
    before = threads()
    mapping = mapped(huge)
    start_populating()
    assert eventually(lambda: resident(mapping.address) == NBYTES and threads() == before)
    again = mapped(huge)
    start_populating()
    assert eventually(lambda: resident(again.address) == NBYTES and threads() == before)


def test_a_release_in_the_middle(huge):
    for i in range(200):
        mappings = [Consumed(map_arena(huge, NBYTES, populate=LATER)) for _ in range(3)]
        start_populating()
        if i % 2:
            time.sleep(i * 1e-6)
        for mapping in mappings[:: 1 if i % 3 else -1]:
            mapping.release()


def test_released_before_it_begins(huge):
    Consumed(map_arena(huge, NBYTES, populate=LATER)).release()
    start_populating()


def test_a_fork_ends_it_and_the_child_can_go_on(huge, mapped):
    for _ in range(20):
        mapping, before = Consumed(map_arena(huge, NBYTES, populate=LATER)), threads()
        start_populating()
        pid = os.fork()
        if pid == 0:
            mapping.release()  # waits for nobody
            own = Consumed(map_arena(huge, NBYTES, populate=LATER))
            start_populating()
            os._exit(0 if eventually(lambda: resident(own.address) == NBYTES) else 1)
        assert threads() <= before
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        mapping.release()


def test_when_is_one_of_three(memfd):
    with pytest.raises(ValueError, match="populate is out of range: 3"):
        map_arena(memfd(b"x"), 1, populate=3)
