"""Fixtures of all tests here. Files are memfds, so that no daemon and no mount is needed."""

import gc
import os
from collections.abc import Callable, Iterator

import pytest

import overmind_cext

FD_LINKS = "/proc/self/fd"


def open_fds() -> dict[str, str]:
    links = {}
    for name in os.listdir(FD_LINKS):
        try:
            links[name] = os.readlink(f"{FD_LINKS}/{name}")
        except FileNotFoundError:  # the handle of listdir itself
            continue
    return links


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """After every test: no mapping lives and no handle is left."""
    gc.collect()
    fds = open_fds()
    assert overmind_cext.live_mappings() == 0
    yield
    gc.collect()
    assert overmind_cext.live_mappings() == 0
    assert open_fds() == fds


@pytest.fixture
def memfd(no_leaks: None) -> Iterator[Callable[..., int]]:
    """Makes memfds with the given bytes, or of a size; closes those that the test left open."""
    made: list[tuple[int, int]] = []

    def make(content: bytes | int, name: str = "arena") -> int:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        made.append((fd, os.fstat(fd).st_ino))
        if isinstance(content, int):
            os.ftruncate(fd, content)
        else:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
        return fd

    yield make
    for fd, inode in made:
        try:
            if os.fstat(fd).st_ino == inode:
                os.close(fd)
        except OSError:  # closed by the test
            pass
