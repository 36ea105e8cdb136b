import ctypes
import errno
import fcntl
import inspect
import os
import threading

import pytest
from conftest import open_fds
from dlpack import Consumed, name_of, peek

import overmind_cext
from overmind_cext import live_mappings, map_arena, released_mappings

HUGE = 2 << 20
SIZES = [1, 4095, 4096, 4097, HUGE - 1, HUGE, HUGE + 1, 3 * HUGE + 12345]
WAYS = [{}, {"populate": True}, {"copy": True}]

# linux/fcntl.h; not in the fcntl module of Python 3.10 to 3.13
F_SEAL_FUTURE_WRITE = 0x10


def mappings_of(inode: int) -> list[str]:
    with open("/proc/self/maps") as maps:
        return [line for line in maps if line.split()[4] == str(inode)]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("nbytes", SIZES)
def test_content_and_alignment(memfd, nbytes, way):
    content = os.urandom(nbytes)
    fd = memfd(content)
    mapping = Consumed(map_arena(fd, nbytes, **way))
    assert mapping.address % HUGE == 0
    assert mapping.nbytes == nbytes
    assert mapping.read() == content
    mapping.release()


def test_capsule_describes_uint8_on_the_cpu(memfd):
    capsule = map_arena(memfd(b"abc"), 3)
    assert name_of(capsule) == b"dltensor"
    tensor = peek(capsule)
    assert (tensor.device_type, tensor.device_id) == (1, 0)
    assert (tensor.code, tensor.bits, tensor.lanes) == (1, 8, 1)
    assert (tensor.ndim, tensor.shape[0], tensor.strides[0], tensor.byte_offset) == (1, 3, 1, 0)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_private(memfd, way):
    fd = memfd(b"x" * 10_000)
    one, two = (Consumed(map_arena(fd, 10_000, **way)) for _ in range(2))
    one.write(5000, b"changed")
    assert one.read(5000, 7) == b"changed"
    assert two.read() == b"x" * 10_000
    assert os.pread(fd, 10_000, 0) == b"x" * 10_000
    one.release()
    two.release()


def test_mapping_is_of_the_file_and_a_copy_is_not(memfd):
    fd = memfd(b"x" * 5000)
    inode = os.fstat(fd).st_ino
    mapping = Consumed(map_arena(fd, 5000))
    (line,) = mappings_of(inode)
    assert line.split()[1] == "rw-p"
    mapping.release()
    assert mappings_of(inode) == []
    mapping = Consumed(map_arena(fd, 5000, copy=True))
    assert mappings_of(inode) == []
    mapping.release()


def test_reserved_address_space_is_given_back(memfd):
    def address_space() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGESIZE")

    fd = memfd(64 << 20)
    before = address_space()
    mappings = [Consumed(map_arena(fd, 64 << 20)) for _ in range(20)]
    assert address_space() - before < 20 * (64 << 20) + 16 * HUGE  # 20 * 2 MiB more, were the ends kept
    for mapping in mappings:
        mapping.release()
    assert address_space() - before < 64 << 20


def test_populate_maps_the_pages(memfd):
    def resident(address: int) -> int:
        with open("/proc/self/smaps") as smaps:
            for line in smaps:
                if line.startswith(f"{address:x}-"):
                    break
            return next(int(line.split()[1]) * 1024 for line in smaps if line.startswith("Rss:"))

    nbytes = 4 * HUGE
    fd = memfd(b"x" * nbytes)
    plain, populated = Consumed(map_arena(fd, nbytes)), Consumed(map_arena(fd, nbytes, populate=True))
    assert resident(plain.address) == 0
    if resident(populated.address) == 0 and os.uname().release < "5.14":
        pytest.skip("this kernel has no MADV_POPULATE_READ")
    assert resident(populated.address) == nbytes
    plain.release()
    populated.release()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_lease_stays_open_until_the_release(memfd, way):
    fd = memfd(b"x" * 100, name="leased")
    mapping = Consumed(map_arena(fd, 100, **way))
    os.close(fd)
    leases = [name for name, link in open_fds().items() if link.startswith("/memfd:leased")]
    assert len(leases) == 1
    assert fcntl.fcntl(int(leases[0]), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    mapping.release()
    assert not any(link.startswith("/memfd:leased") for link in open_fds().values())


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_lease_may_be_another_handle(memfd, way):
    content = os.urandom(100)
    fd, handle = memfd(content, name="memory"), memfd(b"", name="leased")
    mapping = Consumed(map_arena(fd, 100, **way, lease=handle))
    os.close(fd)
    os.close(handle)
    kept = [link.split(":")[1].split()[0] for link in open_fds().values() if link.startswith("/memfd:")]
    assert kept == ["leased"]
    assert mapping.read() == content
    mapping.release()
    assert not any(link.startswith("/memfd:") for link in open_fds().values())


@pytest.mark.parametrize("lease", [-2, 1_000_000])
def test_bad_lease(memfd, lease):
    with pytest.raises(OSError, match=r"fcntl\(F_DUPFD_CLOEXEC\) of 1 bytes") as caught:
        map_arena(memfd(b"x"), 1, lease=lease)
    assert caught.value.errno == errno.EBADF


def test_size_is_that_of_the_file_and_not_of_the_lease(memfd):
    with pytest.raises(ValueError, match="the file has 100 bytes, not 5"):
        map_arena(memfd(b"x" * 100), 5, lease=memfd(b"x" * 5))


def test_counters(memfd):
    fd = memfd(b"x" * 100)
    before = released_mappings()
    mappings = [Consumed(map_arena(fd, 100)) for _ in range(50)]
    assert (live_mappings(), released_mappings() - before) == (50, 0)
    for n, mapping in enumerate(mappings):
        mapping.release()
        assert (live_mappings(), released_mappings() - before) == (49 - n, n + 1)


def test_capsule_never_consumed(memfd):
    fd = memfd(b"x" * 100)
    before = released_mappings()
    capsule = map_arena(fd, 100)
    assert live_mappings() == 1
    del capsule
    assert (live_mappings(), released_mappings() - before) == (0, 1)


def test_capsule_dies_before_its_consumer_releases(memfd):
    before = released_mappings()
    capsule = map_arena(memfd(b"abc"), 3)
    mapping = Consumed(capsule)
    del capsule
    assert (live_mappings(), released_mappings() - before) == (1, 0)
    assert mapping.read() == b"abc"
    mapping.release()
    assert (live_mappings(), released_mappings() - before) == (0, 1)


@pytest.mark.parametrize("seals", [fcntl.F_SEAL_WRITE, F_SEAL_FUTURE_WRITE], ids=["write", "future_write"])
def test_sealed_file_still_maps_privately(memfd, seals):
    fd = memfd(b"x" * 5000)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    mapping = Consumed(map_arena(fd, 5000))
    mapping.write(0, b"mine")
    assert os.pread(fd, 4, 0) == b"xxxx"
    mapping.release()


def test_read_only_handle_is_enough(memfd):
    fd = memfd(b"x" * 5000)
    reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    mapping = Consumed(map_arena(reader, 5000))
    os.close(reader)
    mapping.write(0, b"mine")
    assert mapping.read(0, 4) == b"mine"
    mapping.release()


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("nbytes", [99, 101, 4096, 2**63 - 1])
def test_other_size_than_the_file(memfd, nbytes, copy):
    with pytest.raises(ValueError, match=f"the file has 100 bytes, not {nbytes}$"):
        map_arena(memfd(b"x" * 100), nbytes, copy=copy)


@pytest.mark.parametrize("nbytes", [0, -1, 2**63, 2**64 + 100, -(2**70)])
def test_impossible_size(memfd, nbytes):
    with pytest.raises(ValueError, match="nbytes"):
        map_arena(memfd(b"x" * 100), nbytes)


@pytest.mark.parametrize("copy", [False, True])
def test_more_than_the_address_space(memfd, copy):
    fd = memfd(2**62)
    with pytest.raises(OSError, match=f"mmap .*of {2**62} bytes: ") as caught:
        map_arena(fd, 2**62, copy=copy)
    assert caught.value.errno == errno.ENOMEM


@pytest.mark.parametrize("bad", [1.0, "1", None, b"1"], ids=repr)
def test_types(memfd, bad):
    fd = memfd(b"x")
    with pytest.raises(TypeError):
        map_arena(fd, bad)
    with pytest.raises(TypeError):
        map_arena(bad, 1)
    with pytest.raises(TypeError):
        map_arena(fd)
    with pytest.raises(TypeError):
        map_arena(fd, 1, other=True)


@pytest.mark.parametrize("fd", [-1, 1_000_000])
def test_bad_handle(fd):
    with pytest.raises(OSError, match=r"fcntl\(F_DUPFD_CLOEXEC\) of 1 bytes") as caught:
        map_arena(fd, 1)
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize(("copy", "code"), [(False, errno.EACCES), (True, errno.EBADF)])
def test_write_only_handle(memfd, copy, code):
    fd = memfd(b"x" * 100)
    writer = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        with pytest.raises(OSError, match="of 100 bytes") as caught:
            map_arena(writer, 100, copy=copy)
    finally:
        os.close(writer)
    assert caught.value.errno == code
    assert isinstance(caught.value, PermissionError) == (code == errno.EACCES)


def test_no_handles_left(memfd):
    import resource

    fd = memfd(b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 1, hard))
    blockers = []
    try:
        with pytest.raises(OSError, match="F_DUPFD_CLOEXEC") as caught:
            while True:
                blockers.append(map_arena(fd, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE
    assert live_mappings() == len(blockers)


def test_failed_calls_count_and_map_nothing(memfd):
    fd = memfd(b"x" * 100)
    before = released_mappings()
    for _ in range(100):
        with pytest.raises(ValueError):
            map_arena(fd, 101)
    assert (live_mappings(), released_mappings() - before) == (0, 0)
    assert mappings_of(os.fstat(fd).st_ino) == []


def test_release_from_another_thread(memfd):
    mappings = [Consumed(map_arena(memfd(b"x" * 100), 100)) for _ in range(64)]
    before = released_mappings()
    threads = [threading.Thread(target=lambda part=mappings[i::4]: [m.release() for m in part]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (live_mappings(), released_mappings() - before) == (0, 64)


def test_release_from_a_thread_that_python_does_not_know(memfd):
    mapping = Consumed(map_arena(memfd(b"x" * 100), 100))
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    # the deleter itself is the start routine
    assert (
        libc.pthread_create(
            ctypes.byref(thread), None, ctypes.c_void_p(mapping._managed.deleter), ctypes.c_void_p(mapping._pointer)
        )
        == 0
    )
    assert libc.pthread_join(thread, None) == 0
    assert live_mappings() == 0


def test_many_threads_map_at_once(memfd):
    content = os.urandom(100_000)
    fd = memfd(content)
    wrong = []

    def work() -> None:
        for n in range(50):
            mapping = Consumed(map_arena(fd, 100_000, copy=n % 2 == 0))
            if mapping.read() != content:
                wrong.append(n)
            mapping.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_gil_is_released_while_a_copy_waits(memfd):
    """Another thread makes progress during the copy of a large arena."""
    nbytes = 256 << 20
    fd = memfd(nbytes)
    done = threading.Event()
    ticks = 0

    def copy() -> None:
        Consumed(map_arena(fd, nbytes, copy=True)).release()
        done.set()

    thread = threading.Thread(target=copy)
    thread.start()
    while not done.wait(0.0005):
        ticks += 1
    thread.join()
    assert ticks > 3


def test_signatures():
    assert str(inspect.signature(map_arena)) == "(fd, nbytes, populate=False, copy=False, lease=-1)"
    assert str(inspect.signature(overmind_cext.write_arena)) == "(fd, nbytes, header, pieces, threads=0, mapped=True)"
    assert str(inspect.signature(live_mappings)) == "()"
    assert str(inspect.signature(released_mappings)) == "()"
