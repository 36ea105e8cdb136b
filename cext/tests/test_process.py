"""Ends of processes, forks and threads that die with the interpreter."""

import ctypes
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from dlpack import Consumed

from overmind_cext import live_mappings, map_arena, released_mappings, write_arena

TESTS = str(Path(__file__).parent)
HEAD = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
from dlpack import Consumed
from overmind_cext import live_mappings, map_arena
def arena(nbytes):
    fd = os.memfd_create("arena")
    os.ftruncate(fd, nbytes)
    return fd
"""


def run(code: str, leaks: bool = False) -> str:
    """Runs it in a new interpreter. With leaks=True it ends while it has a mapping, which is no report of a sanitizer."""
    env = dict(os.environ)
    if leaks and "ASAN_OPTIONS" in env:
        env["ASAN_OPTIONS"] += ":detect_leaks=0"
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code, TESTS],
        env=env,
        cwd=TESTS,  # Python looks there first, and must find the installed package
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_mapping_alive_at_exit():
    run("mapping = Consumed(map_arena(arena(100), 100))", leaks=True)


def test_capsule_alive_at_exit():
    run("capsule = map_arena(arena(100), 100)\ncycle = [capsule]\ncycle.append(cycle)")


def test_release_while_the_interpreter_ends():
    out = run("""
import atexit
class Owner:
    def __init__(self):
        self.mapping = Consumed(map_arena(arena(100), 100))
    def __del__(self, write=os.write, live=live_mappings):
        before = live()
        self.mapping.release()
        write(1, b"%d %d\\n" % (before, live()))
owner = Owner()
cycle = [Owner()]
cycle.append(cycle)
late = Owner()
atexit.register(lambda: late)
""")
    assert out.count("\n") == 3
    assert out.endswith("1 0\n")


@pytest.mark.parametrize("way", ["copy=False", "copy=True", "populate=True"])
def test_daemon_threads_inside_a_call_at_exit(way):
    """Taking the GIL back ends such a thread by unwinding it (Python 3.10 to 3.13)."""
    for delay in (0.001, 0.02, 0.05):
        run(
            f"""
import time
fd = arena(16 << 20)
def work():
    while True:
        map_arena(fd, 16 << 20, {way})
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep({delay})
""",
            leaks=True,
        )


@pytest.mark.parametrize("mapped", [True, False])
def test_daemon_threads_that_write_at_exit(mapped):
    for delay in (0.001, 0.02, 0.05):
        run(
            f"""
import ctypes, time
from overmind_cext import write_arena
source = ctypes.create_string_buffer(16 << 20)
address = ctypes.addressof(source)
fd = arena(16 << 20)
def work(source=source):
    while True:
        write_arena(fd, 16 << 20, b"", [(0, address, 16 << 20)], mapped={mapped})
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep({delay})
""",
            leaks=True,
        )


def test_fork(memfd):
    """A child has the mapping and the lease of its own; what it writes or releases is its own, too."""
    fd = memfd(b"x" * 5000, name="forked")
    mapping = Consumed(map_arena(fd, 5000))
    mapping.write(0, b"parent")
    before = released_mappings()
    child = os.fork()
    if child == 0:
        good = mapping.read(0, 6) == b"parent" and live_mappings() == 1
        mapping.write(0, b"child!")
        good = good and mapping.read(0, 6) == b"child!"
        mapping.release()
        good = good and (live_mappings(), released_mappings()) == (0, before + 1)
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert mapping.read() == b"parent" + b"x" * 4994
    assert (live_mappings(), released_mappings()) == (1, before)
    mapping.release()


def test_lease_is_not_inherited_by_another_program(memfd):
    fd = memfd(b"x" * 100, name="not_inherited")
    mapping = Consumed(map_arena(fd, 100))
    out = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True)
    assert "not_inherited" not in out.stdout
    mapping.release()


def test_fork_does_not_inherit_the_shared_mapping(memfd):
    """A child that lives on with one would keep the arena from being sealed."""
    nbytes = 64 << 20
    fd = memfd(nbytes, name="written")
    source = ctypes.create_string_buffer(nbytes)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            write_arena(fd, nbytes, b"", [(0, ctypes.addressof(source), nbytes)])

    def shared() -> bool:
        with open("/proc/self/maps") as maps:
            return any("rw-s" in line and "/memfd:written" in line for line in maps)

    thread = threading.Thread(target=work)
    thread.start()
    seen = 0
    try:
        for _ in range(20):
            seen += shared()
            child = os.fork()
            if child == 0:
                os._exit(1 if shared() else 0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
    assert seen > 0  # else this proved nothing
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
