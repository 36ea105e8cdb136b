"""Entries as plain folders. A FIFO stands for what hangs: opening one waits for somebody who writes."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from test_unpack import Writer

from overmind_cext import open_entry

ARENAS = {"unet.safetensors": b"u" * 5000, "vae.safetensors": b"v"}


def manifest(*names):
    w = Writer()
    rows = [w.table(("offset", w.string(name)), ("Uint64", 1)) for name in names]
    return w.finish(w.table(*[None] * 8, ("offset", w.offsets(rows))))


def fill(folder, *names, content=ARENAS):
    (folder / "tensors").mkdir(parents=True)
    (folder / "manifest").write_bytes(manifest(*(names or content)))
    (folder / "structure.pkl").write_bytes(b"structure of " + folder.name.encode())
    for name, data in content.items():
        (folder / "tensors" / name).write_bytes(data)
    return folder


@pytest.fixture
def entry(tmp_path):
    return fill(tmp_path / "root" / "pipelines" / "one")


def opened(entry, hold=False, seconds=10.0):
    """What open_entry gives, with the descriptors turned into what is read from them, and closed."""
    result = open_entry(str(entry.parents[1]), f"pipelines/{entry.name}", hold, seconds)
    if result is None:
        return None
    root, error, name, files, folder, arenas, *rest = result
    contents = []
    for fd, uid, nbytes, inode in arenas:
        assert os.fstat(fd).st_ino == inode
        contents.append((os.pread(fd, 1 << 20, 0), uid, nbytes))
        assert not os.get_inheritable(fd)
    before = fds()
    del files, result
    assert len(before - fds()) == len(arenas) + (folder >= 0)
    return root, error, name, contents, *rest


def fds():
    return set(os.listdir("/proc/self/fd"))


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def threads():
    return len(os.listdir("/proc/self/task"))


def fifo(path):
    path.unlink()
    os.mkfifo(path)
    return path


def release(path):
    """Let go on who waits for somebody that writes, now or soon; fails where nobody does."""

    def wait():
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as e:
            assert e.errno == errno.ENXIO
            return False
        return True

    until(wait)


@pytest.mark.parametrize("hold", [False, True])
def test_everything_of_an_entry(entry, hold):
    root, error, _, arenas, data, owner, structure, author = opened(entry, hold)
    info = os.stat(entry.parents[1])
    assert root == (info.st_dev, info.st_mtime_ns)
    assert (error, data, structure) == (0, manifest(*ARENAS), b"structure of one")
    assert owner == author == os.geteuid()
    assert arenas == [(content, os.geteuid(), len(content)) for content in ARENAS.values()]


def test_the_owners_are_those_of_the_files(entry):
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(entry / "manifest", 1, 1)
    os.chown(entry / "tensors" / "vae.safetensors", 2, 2)
    os.chown(entry / "structure.pkl", 3, 3)
    _, error, _, arenas, _, owner, _, author = opened(entry)
    assert (error, owner, [uid for _, uid, _ in arenas], author) == (0, 1, [0, 2], 3)


def test_without_arenas(tmp_path):
    folder = tmp_path / "root" / "pipelines" / "none"
    (folder / "tensors").mkdir(parents=True)
    (folder / "structure.pkl").write_bytes(b"")
    for data in (manifest(), b""):
        (folder / "manifest").write_bytes(data)
        _, error, _, arenas, found, _, structure, _ = opened(folder)
        assert (error, arenas, found, structure) == (0, [], data, b"")


def test_hold_notes_the_use_and_locks_the_folder(entry):
    import fcntl

    os.utime(entry, ns=(0, 0))
    result = open_entry(str(entry.parents[1]), "pipelines/one", True, 10.0)
    fd = os.open(entry, os.O_RDONLY)
    assert os.fstat(fd).st_mtime_ns > 0
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    del result
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_without_hold_nothing_is_noted(entry):
    os.utime(entry, ns=(0, 0))
    opened(entry)
    assert os.stat(entry).st_mtime_ns == 0


@pytest.mark.parametrize(
    "missing", ["", "manifest", "tensors/unet.safetensors", "tensors/vae.safetensors", "structure.pkl"]
)
def test_what_is_missing_is_named(entry, missing):
    path = entry / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = fds()
    _, error, name, *_ = opened(entry)
    assert (error, name) == (2, missing)
    until(lambda: fds() == before)


@pytest.mark.parametrize("name", ["manifest", "tensors/vae.safetensors", "structure.pkl"])
@pytest.mark.parametrize("kind", ["folder", "link", "device"])
def test_what_is_no_file(entry, name, kind):
    path = entry / name
    path.rename(entry / "away")
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(entry / "away")
    else:
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero, which has no end
    _, error, about, *_ = opened(entry)
    assert (error, about) == ({"link": 40}.get(kind, 6), name)


def test_a_folder_that_is_none(entry):
    shutil.rmtree(entry)
    entry.write_bytes(b"")
    assert opened(entry)[1:3] == (20, "")
    entry.unlink()
    entry.symlink_to(entry.parent)
    assert opened(entry)[1:3] == (20, "")


def test_no_root(entry):
    shutil.rmtree(entry.parents[1])
    assert opened(entry)[:3] == ((0, 0), 2, "")


def test_a_blob_of_more_than_a_gibibyte(entry):
    os.truncate(entry / "structure.pkl", (1 << 30) + 1)
    assert opened(entry)[1:3] == (27, "structure.pkl")


@pytest.mark.parametrize("name", ["", ".", "..", "../../outside", "a/b", "/etc/passwd", "a\0b"])
def test_names_that_lead_elsewhere_are_not_opened(tmp_path, name):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "outside").write_bytes(b"secret")
    folder = fill(tmp_path / "root" / "pipelines" / "one", "vae.safetensors", name, "unet.safetensors")
    _, error, _, arenas, *_ = opened(folder)
    assert (error, [content for content, _, _ in arenas]) == (0, [b"v"])


def test_a_manifest_of_anything(entry):
    data = bytearray(manifest(*ARENAS))
    for at in range(len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] = value
            (entry / "manifest").write_bytes(changed)
            found = opened(entry)
            assert found[1] in (0, 2, 36), found[:3]  # ENAMETOOLONG
            assert found[4] == bytes(changed)


def test_what_takes_too_long_is_closed_when_it_comes(entry):
    pipe = fifo(entry / "structure.pkl")
    before, running = fds(), threads()
    assert opened(entry, seconds=0.05) is None
    assert threads() == running + 1
    until(lambda: len(fds() - before) == 3)  # folder, arenas
    release(pipe)
    until(lambda: threads() == running and fds() == before)


def test_an_interrupt_ends_the_wait(entry):
    pipe = fifo(entry / "structure.pkl")
    before, running = fds(), threads()
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        opened(entry, seconds=60)
    assert time.monotonic() - start < 30
    timer.join()
    release(pipe)
    until(lambda: threads() == running and fds() == before)


def test_interrupts_at_any_moment_leave_nothing_open(entry):
    def late(number, frame):
        raise InterruptedError

    old = signal.signal(signal.SIGALRM, late)
    before, running, interrupts = fds(), threads(), 0
    try:
        for i in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + i % 40 * 1e-5)
                result = open_entry(str(entry.parents[1]), "pipelines/one", True, 10.0)
                time.sleep(0.02)
            except InterruptedError:
                interrupts += 1
            result = None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert result is None
    assert interrupts == 400
    until(lambda: threads() == running and fds() == before)


def test_its_thread_takes_no_signals(entry):
    pipe = fifo(entry / "structure.pkl")
    running = set(os.listdir("/proc/self/task"))
    assert opened(entry, seconds=0.05) is None
    (thread,) = set(os.listdir("/proc/self/task")) - running
    with open(f"/proc/self/task/{thread}/status") as f:
        blocked = next(int(line.split()[1], 16) for line in f if line.startswith("SigBlk:"))
    assert all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD))
    with open("/proc/self/status") as f:
        own = next(int(line.split()[1], 16) for line in f if line.startswith("SigBlk:"))
    assert not own >> (signal.SIGINT - 1) & 1
    release(pipe)
    until(lambda: set(os.listdir("/proc/self/task")) == running)


def test_an_entry_that_is_replaced_meanwhile_is_opened_once_more(entry):
    """Whole, not with arenas of the one and the structure of the other."""
    pipe = fifo(entry / "tensors" / "vae.safetensors")
    other = fill(entry.parent / "other", content={"text_encoder.safetensors": b"t"})
    results, running = [], threads()
    thread = threading.Thread(target=lambda: results.append(opened(entry, seconds=60)))
    thread.start()
    until(lambda: threads() == running + 2)
    time.sleep(0.3)  # into the open that waits
    old = entry.rename(entry.parent / "old")
    other.rename(entry)
    release(old / "tensors" / pipe.name)
    thread.join()
    ((_, error, _, arenas, data, _, structure, _),) = results
    assert error == 0
    assert ([content for content, _, _ in arenas], structure) == ([b"t"], b"structure of other")
    assert data == manifest("text_encoder.safetensors")


def test_one_that_is_removed_meanwhile_is_not_there(entry):
    pipe = fifo(entry / "tensors" / "vae.safetensors")
    results, running = [], threads()
    thread = threading.Thread(target=lambda: results.append(opened(entry, seconds=60)))
    thread.start()
    until(lambda: threads() == running + 2)
    time.sleep(0.3)
    old = entry.rename(entry.parents[2] / "old")
    release(old / "tensors" / pipe.name)
    thread.join()
    assert results[0][1:4] == (2, "", [])


@pytest.mark.parametrize("seconds", [1e10, float("inf")])
def test_as_long_as_it_takes(entry, seconds):
    assert opened(entry, seconds=seconds)[1] == 0


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("-inf")])
def test_times_that_are_none(entry, seconds):
    with pytest.raises(ValueError, match="no such time"):
        open_entry(str(entry.parents[1]), "pipelines/one", False, seconds)


@pytest.mark.parametrize(
    "arguments", [(1, "x", False, 1.0), ("x", None, False, 1.0), ("x", "a\0b", False, 1.0), ("x",)]
)
def test_arguments_that_are_none(arguments):
    with pytest.raises((TypeError, ValueError)):
        open_entry(*arguments)


def test_names_that_are_not_unicode(tmp_path):
    entry = fill(tmp_path / os.fsdecode(b"r\xff") / "pipelines" / "one")
    assert opened(entry)[1] == 0


def test_files_that_are_open_in_time_are_found_late(entry):
    """As where another thread has the GIL for longer than that."""
    pipe = fifo(entry / "structure.pkl")
    running = threads()

    def wake(number, frame):
        release(pipe)
        until(lambda: threads() == running)
        time.sleep(max(0.0, start + 1.2 - time.monotonic()))

    old = signal.signal(signal.SIGALRM, wake)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        start = time.monotonic()
        assert opened(entry, seconds=1.0)[1:3] == (6, "structure.pkl")
    finally:
        signal.signal(signal.SIGALRM, old)


FILTERED = """
import ctypes, os, struct, sys
number = {"x86_64": 332, "aarch64": 291}[os.uname().machine]
# Load the number of the system call; if it is statx, answer EPERM; else allow.
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
program = struct.pack("<HxxxxxxQ", len(steps), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
buffer = ctypes.create_string_buffer(256)
assert libc.statx(-100, b"/", 0, 0x7FF, buffer) == -1 and ctypes.get_errno() == 1
from overmind_cext import open_entry
print(open_entry(sys.argv[1], "pipelines/one", False, 10.0)[1:3])
"""


def test_where_a_filter_refuses_statx(entry):
    if os.uname().machine not in ("x86_64", "aarch64"):
        pytest.skip("numbers of system calls")
    words = [sys.executable, "-c", FILTERED, str(entry.parents[1])]
    said = subprocess.run(words, check=False, capture_output=True, text=True)
    assert said.stdout == "(0, 'structure.pkl')\n", said.stderr
