"""A forked copier: it has the memory of this process as it was, and nothing else of it."""

import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from overmind_cext import agreement, start_copier, write_arena

COPY_MAPPED, COPY_WRITTEN, COMPARE = 1, 2, 3
WALL = 0x40000000
LARGE = (9 << 20) + 17


def address(memory) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Copier:
    def __init__(self, *plans) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.pidfd = start_copier(theirs.fileno(), plans)
        self.socket.settimeout(60)
        assert self.answer() == 0

    def answer(self) -> int:
        return struct.unpack("=q", self.socket.recv(8))[0]

    def ask(self, command: int, arena: int, fd: int) -> int:
        handed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self.socket.sendmsg([struct.pack("=II", command, arena)], handed)
        return self.answer()

    def pid(self) -> int:
        text = Path(f"/proc/self/fdinfo/{self.pidfd}").read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith("Pid:")))

    def end(self):
        self.socket.close()
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | WALL)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.end()
        os.close(self.pidfd)


@pytest.fixture
def copier():
    made = []

    def make(*plans):
        made.append(Copier(*plans))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("command", [COPY_MAPPED, COPY_WRITTEN])
def test_it_copies_what_was_there_at_the_fork(memfd, copier, command):
    memory = bytearray(os.urandom(LARGE))
    before = bytes(memory)
    other = bytearray(b"abcdef")
    plan = (LARGE + 4096, b"header", [(4096, address(memory), LARGE), (8, address(other), 6)])
    child = copier((10, b"first", []), plan)
    memory[:] = bytes(LARGE)
    other[:] = b"ABCDEF"
    fd = memfd(LARGE + 4096)
    assert child.ask(command, 1, fd) == LARGE + 4096
    assert os.pread(fd, 14, 0) == b"header\0\0abcdef"
    assert os.pread(fd, LARGE, 4096) == before
    assert child.ask(COMPARE, 1, fd) == LARGE + 4096
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)  # refused while somebody has it mapped for writing


def test_it_goes_on_when_its_memory_is_gone(memfd, copier):
    memory = mmap.mmap(-1, 1 << 20)
    memory[:] = b"x" * (1 << 20)
    child = copier((1 << 20, b"", [(0, address(memory), 1 << 20)]))
    with contextlib.suppress(BufferError):
        memory.close()
    fd = memfd(1 << 20)
    assert child.ask(COPY_MAPPED, 0, fd) == 1 << 20
    assert os.pread(fd, 1 << 20, 0) == b"x" * (1 << 20)


@pytest.mark.parametrize("at", [0, 5, 100, 4096, 300_000, LARGE - 1])
def test_agreement(memfd, copier, at):
    memory = bytearray(os.urandom(LARGE))
    plan = (LARGE + 4096, b"header", [(4096, address(memory), LARGE)])
    child = copier(plan)
    fd = memfd(LARGE + 4096)
    write_arena(fd, *plan)
    where = at if at < 4096 else at + 4096
    os.pwrite(fd, bytes([os.pread(fd, 1, where)[0] ^ 1]), where)
    expected = LARGE + 4096 if at == 100 else where  # padding is not compared
    assert agreement(fd, *plan) == expected
    assert child.ask(COMPARE, 0, fd) == expected


def test_agreement_with_what_cannot_be_read(memfd):
    fd = memfd(b"header, and then nothing")
    assert agreement(fd, 5000, b"header", [(4096, address(bytearray(8)), 8)]) == 4096
    assert agreement(-1, 6, b"header", []) == 0


def test_what_it_refuses(memfd, copier):
    child = copier((100, b"header", []))
    small, large = memfd(99), memfd(100)
    assert child.ask(COPY_MAPPED, 0, small) == -errno.EFBIG
    assert child.ask(COPY_MAPPED, 1, large) == -errno.EINVAL
    assert child.ask(9, 0, large) == -errno.EINVAL
    with open(f"/proc/self/fd/{large}", "rb") as reading:
        assert child.ask(COPY_WRITTEN, 0, reading.fileno()) == -errno.EBADF
        assert child.ask(COPY_MAPPED, 0, reading.fileno()) == -errno.EACCES
    assert child.ask(COPY_MAPPED, 0, large) == 100


def test_it_has_nothing_open(copier):
    r, w = os.pipe()
    os.set_inheritable(w, True)
    child = copier((100, b"", []))
    links = [os.readlink(f"/proc/{child.pid()}/fd/{n}") for n in os.listdir(f"/proc/{child.pid()}/fd")]
    assert [link.partition(":")[0] for link in links] == ["socket"]
    os.close(w)
    assert select.select([r], [], [], 60)[0], "the copier keeps a pipe of the program open"
    assert os.read(r, 1) == b""
    os.close(r)


def test_it_ends_when_the_socket_is_closed(copier):
    child = copier((100, b"", []))
    assert child.end().si_status == 0


def test_it_ends_in_the_middle_of_a_copy(memfd, copier):
    """It looks now and then whether anybody wants the rest."""
    memory = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    child = copier((1 << 40, b"", [(n << 30, address(memory), 1 << 30) for n in range(1 << 10)]))
    fd = memfd(1 << 40)
    handed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    child.socket.sendmsg([struct.pack("=II", COMPARE, 0)], handed)  # a terabyte of zeros
    assert child.end().si_status == 0


def test_no_wait_and_no_signal_of_the_program_meets_it(copier):
    seen = []
    before = signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))
    try:
        child = copier((100, b"", []))
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, 0)
        child.end()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not seen


def test_a_signal_for_the_whole_group_does_not_end_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, signal, sys
        sys.path[:0] = {sys.path!r}
        import test_copier
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        child = test_copier.Copier((6, b"header", []))
        signal.signal(signal.SIGUSR1, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.killpg(0, number)
        fd = os.memfd_create("arena")
        os.ftruncate(fd, 6)
        assert child.ask(test_copier.COPY_MAPPED, 0, fd) == 6
        assert os.pread(fd, 6, 0) == b"header"
        child.close()
    """)
    )
    line = [sys.executable, script]
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=120, start_new_session=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_dies_first_where_memory_is_short(copier):
    child = copier((100, b"", []))
    assert Path(f"/proc/{child.pid()}/oom_score_adj").read_text() == "1000\n"
    assert os.getpriority(os.PRIO_PROCESS, child.pid()) == 10
    assert Path(f"/proc/{child.pid()}/comm").read_text() == "overmind-fill\n"


def test_memory_that_is_not_there(memfd, copier):
    hole = mmap.mmap(-1, 1 << 20)
    where = address(hole)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert libc.mprotect(where, 1 << 20, 0) == 0
    child = copier((1 << 20, b"", [(0, where, 1 << 20)]))
    with pytest.raises(struct.error):
        child.ask(COPY_MAPPED, 0, memfd(1 << 20))  # the copier dies, and the program does not
    assert os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | WALL | os.WNOWAIT).si_status == signal.SIGSEGV


@pytest.mark.parametrize(
    ("plans", "error"),
    [
        ([(0, b"", [])], ValueError),
        ([(10, b"header", [(5, 4096, 1)])], ValueError),
        ([(10, b"header", [(9, 4096, 2)])], ValueError),
        ([[10, b"header", []]], TypeError),
        ([(10, "header", [])], TypeError),
        ([(10, b"header")], TypeError),
        ([(10, b"header", 7)], TypeError),
        (7, TypeError),
    ],
)
def test_bad_plans(plans, error):
    with pytest.raises(error):
        start_copier(1, plans)


def test_bad_socket():
    with pytest.raises(ValueError):
        start_copier(-1, [])


def anonymous(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("RssAnon:"))


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer's memory looks like any other")
def test_lets_go_of_what_it_does_not_copy():
    """Else the program gets a copy of each page that it writes to, as long as the copier lives."""
    rest, size = 256 << 20, 64 << 20
    with mmap.mmap(-1, rest, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:: mmap.PAGESIZE] = b"x" * (rest // mmap.PAGESIZE)
        start = address(memory)
        # In the middle of what it lets go of, neither of them at the start of a page.
        pieces = [(0, start + size + 17, 5 << 20), (6 << 20, start + 3 * size + 1, 1000)]
        want = bytes(memory[size + 17 :][: 5 << 20]) + bytes(1 << 20) + bytes(memory[3 * size + 1 :][:1000])
        before = anonymous(os.getpid())
        copier = Copier((len(want), b"", pieces))
        try:
            assert anonymous(copier.pid()) <= before - rest + (32 << 20)
            memory[:: mmap.PAGESIZE] = b"y" * (rest // mmap.PAGESIZE)
            fd = os.memfd_create("arena")
            os.ftruncate(fd, len(want))
            assert copier.ask(COPY_MAPPED, 0, fd) == len(want)
            assert os.pread(fd, len(want), 0) == want
            os.close(fd)
        finally:
            copier.close()
        del pieces
