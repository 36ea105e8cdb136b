import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import random
import sys
import threading

import pytest

from overmind_cext import write_arena

HUGE = 2 << 20
WAYS = [(mapped, threads) for mapped in (True, False) for threads in (0, 1, 3)]


def address_of(content: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p).value


def read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


@pytest.mark.parametrize(("mapped", "threads"), WAYS)
def test_header_and_pieces(memfd, mapped, threads):
    fd = memfd(100)
    pieces = [(90, address_of(b"0123456789"), 10), (8, address_of(b"abc"), 3)]
    write_arena(fd, 100, b"header", pieces, threads=threads, mapped=mapped)
    assert read(fd) == b"header\0\0abc".ljust(90, b"\0") + b"0123456789"


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("pieces", [[], (), iter([]), [(0, 0, 0)], [(100, 0, 0), (5, 0, 0), (5, 7, 0)]])
def test_nothing_but_a_header(memfd, mapped, pieces):
    fd = memfd(b"x" * 100)
    write_arena(fd, 100, b"header", pieces, mapped=mapped)
    assert read(fd) == b"header" + b"x" * 94


@pytest.mark.parametrize("mapped", [True, False])
def test_nothing_at_all(memfd, mapped):
    fd = memfd(b"x" * 100)
    write_arena(fd, 100, b"", [], mapped=mapped)
    assert read(fd) == b"x" * 100


def test_header_of_the_whole_file(memfd):
    fd = memfd(100)
    write_arena(fd, 100, b"h" * 100, [])
    assert read(fd) == b"h" * 100


@pytest.mark.parametrize(("mapped", "threads"), WAYS)
def test_large_pieces_are_split(memfd, mapped, threads):
    """Ends around the multiples of 4 MiB at which pieces are cut: just before, on, and just after them."""
    cut = 2 * HUGE
    ends = [
        cut - 1,
        cut,
        cut + 1,
        2 * cut - 50,
        2 * cut + 50,
        3 * cut,
        4 * cut,
        7 * cut - 1,
        9 * cut + 1,
        9 * cut + 4096,
    ]
    rng = random.Random(1)
    sources, pieces, at = [], [], 9
    for nbytes in [end - start for start, end in itertools.pairwise([at, *ends])]:
        sources.append(rng.randbytes(nbytes))
        pieces.append((at, address_of(sources[-1]), nbytes))
        at += nbytes
    fd = memfd(at)
    shuffled = rng.sample(pieces, len(pieces))
    write_arena(fd, at, b"123456789", shuffled, threads=threads, mapped=mapped)
    assert read(fd) == b"123456789" + b"".join(sources)


@pytest.mark.parametrize(("mapped", "threads"), WAYS)
def test_5000_pieces(memfd, mapped, threads):
    rng = random.Random(2)
    source = rng.randbytes(1 << 20)
    base = address_of(source)
    expected, pieces, at = bytearray(b"header"), [], 6
    for _ in range(5000):
        nbytes, start = rng.randrange(0, 4000), rng.randrange(0, 1 << 19)
        gap = rng.randrange(0, 64)
        pieces.append((at + gap, base + start, nbytes))
        expected += b"\0" * gap + source[start : start + nbytes]
        at += gap + nbytes
    rng.shuffle(pieces)
    fd = memfd(at)
    write_arena(fd, at, b"header", pieces, threads=threads, mapped=mapped)
    assert read(fd) == bytes(expected)


def test_mapped_and_unmapped_are_equal(memfd):
    rng = random.Random(3)
    for _ in range(50):
        nbytes = rng.randrange(1, 3_000_000)
        source = rng.randbytes(nbytes)
        header = rng.randbytes(rng.randrange(0, min(nbytes, 1000)))
        cuts = sorted(rng.sample(range(len(header), nbytes + 1), min(8, nbytes - len(header))))
        pieces = [(a, address_of(source) + a, b - a) for a, b in itertools.pairwise(cuts)]
        results = []
        for mapped in (True, False):
            fd = memfd(nbytes)
            write_arena(fd, nbytes, header, pieces, threads=rng.randrange(0, 5), mapped=mapped)
            results.append(read(fd))
            os.close(fd)
        assert results[0] == results[1]


def test_no_shared_mapping_is_left(memfd):
    fd = memfd(100)
    write_arena(fd, 100, b"x" * 100, [])
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)  # EBUSY, were one left
    with pytest.raises(OSError, match="mmap of 100 bytes") as caught:
        write_arena(fd, 100, b"y", [])
    assert caught.value.errno == errno.EPERM
    with pytest.raises(OSError, match="pwrite of 100 bytes") as caught:
        write_arena(fd, 100, b"y", [], mapped=False)
    assert caught.value.errno == errno.EPERM
    assert read(fd) == b"x" * 100


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("nbytes", [99, 101, 2**63 - 1])
def test_other_size_than_the_file(memfd, mapped, nbytes):
    fd = memfd(b"x" * 100)
    with pytest.raises(ValueError, match=f"the file has 100 bytes, not {nbytes}$"):
        write_arena(fd, nbytes, b"y", [], mapped=mapped)
    assert read(fd) == b"x" * 100


@pytest.mark.parametrize("mapped", [True, False])
def test_read_only_handle(memfd, mapped):
    fd = memfd(b"x" * 100)
    reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with pytest.raises(OSError, match="of 100 bytes") as caught:
            write_arena(reader, 100, b"y", [], mapped=mapped)
    finally:
        os.close(reader)
    assert caught.value.errno == (errno.EACCES if mapped else errno.EBADF)


def test_append_handle_is_refused_as_linux_ignores_the_offset(memfd):
    fd = memfd(b"x" * 100)
    appender = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        with pytest.raises(OSError, match="O_APPEND"):
            write_arena(appender, 100, b"y", [], mapped=False)
        assert read(fd) == b"x" * 100
        write_arena(appender, 100, b"y", [])
    finally:
        os.close(appender)
    assert read(fd) == b"y" + b"x" * 99


@pytest.mark.parametrize("mapped", [True, False])
def test_bad_handle(mapped):
    with pytest.raises(OSError, match=r"fcntl\(F_GETFL\) of 1 bytes") as caught:
        write_arena(-1, 1, b"", [], mapped=mapped)
    assert caught.value.errno == errno.EBADF


def test_full_file_system_is_an_error_when_not_mapped():
    """A file whose size may not grow past a limit stands in for a full disk: EFBIG from the limit, without a signal."""
    import resource
    import signal
    import tempfile

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with tempfile.TemporaryFile() as file:
            file.truncate(100_000)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
            with pytest.raises(OSError, match="pwrite of 100000 bytes") as caught:
                write_arena(file.fileno(), 100_000, b"h" * 100_000, [], mapped=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG


def test_bad_memory_is_an_error_when_not_mapped(memfd):
    fd = memfd(100)
    with pytest.raises(OSError, match="pwrite") as caught:
        write_arena(fd, 100, b"", [(0, 8, 100)], mapped=False)
    assert caught.value.errno == errno.EFAULT


@pytest.mark.parametrize(
    "bad", [None, 5, [5], [None], [(1, 2)], [(1, 2, 3, 4)], [(1, 2, "3")], [(1.0, 2, 3)]], ids=repr
)
def test_pieces_of_another_kind(memfd, bad):
    fd = memfd(b"x" * 100)
    with pytest.raises((TypeError, ValueError)):
        write_arena(fd, 100, b"y", bad)
    assert read(fd) == b"x" * 100


@pytest.mark.parametrize("header", [None, "text", 5, bytearray(b"x"), memoryview(b"x")], ids=repr)
def test_header_is_bytes(memfd, header):
    with pytest.raises(TypeError):
        write_arena(memfd(100), 100, header, [])


@pytest.mark.parametrize("threads", [-1, -(2**31)])
def test_thread_count(memfd, threads):
    with pytest.raises(ValueError, match="threads"):
        write_arena(memfd(100), 100, b"", [], threads=threads)


def test_absurd_thread_count(memfd):
    source = b"s" * (10 * HUGE)
    fd = memfd(10 * HUGE)
    write_arena(fd, 10 * HUGE, b"", [(0, address_of(source), 10 * HUGE)], threads=2**31 - 1)
    assert read(fd) == source


def test_pieces_that_change_while_they_are_read(memfd):
    """Code of the caller runs during the conversion of its numbers."""

    class Number:
        def __index__(self) -> int:
            pieces.clear()
            return 10

    source = b"abc"
    pieces = [(Number(), address_of(source), 3), (20, address_of(source), 3)]
    fd = memfd(100)
    write_arena(fd, 100, b"", pieces)
    assert read(fd) == (b"\0" * 10 + b"abc").ljust(20, b"\0") + b"abc".ljust(80, b"\0")


@pytest.mark.parametrize("piece", [(0, 0, 0), (1, 2), (0, 0, "0"), (0, 0, -1), (1999, 0, 2), (0, 0, 2**64)], ids=repr)
def test_references_are_given_back(memfd, piece):
    header, offset = bytes(bytearray(b"header")), int("1000")
    pieces = [(offset, 0, 0), piece]
    fd = memfd(2000)

    def counts() -> list[int]:
        return [sys.getrefcount(thing) for thing in (header, offset, pieces, *pieces)]

    before = counts()
    for _ in range(100):
        with contextlib.suppress(TypeError, ValueError):
            write_arena(fd, 2000, header, pieces)
    assert counts() == before


def test_error_of_the_iterator_passes(memfd):
    def broken():
        yield (0, 0, 0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        write_arena(memfd(100), 100, b"", broken())


@pytest.mark.parametrize("mapped", [True, False])
def test_gil_is_released(memfd, mapped):
    source = bytes(128 << 20)
    fd = memfd(len(source))
    done = threading.Event()
    ticks = 0

    def write() -> None:
        write_arena(fd, len(source), b"", [(0, address_of(source), len(source))], mapped=mapped)
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.wait(0.0005):
        ticks += 1
    thread.join()
    assert ticks > 3
