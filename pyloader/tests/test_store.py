"""Opening entries where the root or the entry is another one by then."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable

import pytest
import torch

from overmind.api import load
from overmind.errors import CorruptEntry
from overmind.store import Store


def make(path: str) -> torch.Tensor:
    return torch.load(path)


@pytest.fixture
def entry(root: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / 'x.pt'
    torch.save(torch.arange(6.0), path)
    load(make, str(path))
    (folder,) = (root / 'pipelines').iterdir()
    return folder


def open_of(entry: pathlib.Path) -> list[str]:
    names = [os.path.join('/proc/self/fd', name) for name in os.listdir('/proc/self/fd')]
    links = [os.readlink(name) for name in names if os.path.lexists(name)]
    return [link for link in links if link.startswith(str(entry))]


def test_another_daemon_has_other_names(root: pathlib.Path, entry: pathlib.Path) -> None:
    """The names under which a user has entries depend on whose mount it is, so they are asked for again."""

    class Renamed(Store):
        def name(self, id: str, uid: int | None = None) -> str:
            return id if self._seen != before else 'another'

    store, before = Renamed(str(root), 5.0), None
    assert store.read(entry.name) is not None
    before = store._seen
    assert store.read(entry.name) is None
    os.utime(root, ns=(0, 0))
    found = store.read(entry.name)
    assert found is not None
    assert found.manifest.id == entry.name
    found.close()
    found = None
    assert store._seen != before


@pytest.fixture
def passing(root: pathlib.Path, entry: pathlib.Path) -> Callable[[Callable[[], None]], Store]:
    """A store for which memory is asked for by a function, after another one was called."""

    def make_store(before: Callable[[], None]) -> Store:
        class Passing(Store):
            def memory(self, place: str, id: str, name: str, inode: int) -> int:
                before()
                return os.open(entry / 'tensors' / name, os.O_RDONLY)

        store = Passing(str(root), 5.0)
        store.guard(store._check_root)
        store.way = 'fd'
        return store

    return make_store


def test_memory_comes_in_the_place_of_files(
    entry: pathlib.Path, passing: Callable[[Callable[[], None]], Store]
) -> None:
    found = passing(lambda: None).read(entry.name)
    assert found is not None
    assert found.access == 'fd'
    assert len(found.arenas) == len(found.leases) == 1
    assert found.arenas != found.leases
    assert len(open_of(entry)) == 3  # the folder, the file, the memory
    found.close()
    del found
    assert not open_of(entry)


def test_an_entry_that_is_replaced_before_its_memory_comes(
    root: pathlib.Path, entry: pathlib.Path, passing: Callable[[Callable[[], None]], Store]
) -> None:
    old = root / 'staging' / 'old'

    def replace() -> None:
        if not old.exists():
            entry.rename(old)
            shutil.copytree(old, entry)
            raise FileNotFoundError(2, 'gone', 'arena')

    found = passing(replace).read(entry.name)
    assert found is not None
    assert os.stat(entry / 'tensors').st_ino != os.stat(old / 'tensors').st_ino
    assert os.fstat(found.leases[0]).st_ino != os.stat(old).st_ino
    found.close()


def test_an_entry_that_is_evicted_before_its_memory_comes(
    root: pathlib.Path, entry: pathlib.Path, passing: Callable[[Callable[[], None]], Store]
) -> None:
    def evict() -> None:
        entry.rename(root / 'staging' / 'old')
        raise FileNotFoundError(2, 'gone', 'arena')

    assert passing(evict).read(entry.name) is None


def test_memory_that_is_never_there(entry: pathlib.Path, passing: Callable[[Callable[[], None]], Store]) -> None:
    def never() -> None:
        raise FileNotFoundError(2, 'gone', 'the arena')

    with pytest.raises(CorruptEntry, match='does not know its arenas') as raised:
        passing(never).read(entry.name)
    assert not open_of(entry), raised


def test_what_fails_leaves_nothing_open(entry: pathlib.Path, passing: Callable[[Callable[[], None]], Store]) -> None:
    """Not even while the exception is looked at, as it is during the real load that follows."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        passing(interrupted).read(entry.name)
    assert not open_of(entry), raised
    (entry / 'structure.pkl').unlink()
    with pytest.raises(CorruptEntry, match=r'structure\.pkl is missing') as missing:
        passing(interrupted).read(entry.name)
    assert not open_of(entry), missing


def test_a_socket_that_fails_has_the_files_read(
    entry: pathlib.Path, passing: Callable[[Callable[[], None]], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv('OVERMIND_STRICT', raising=False)

    def refuse() -> None:
        raise PermissionError(1, 'no')

    found = passing(refuse).read(entry.name)
    assert found is not None
    assert found.access == 'read'
    found.close()


def test_memory_that_was_passed_goes_with_the_entry(
    entry: pathlib.Path, passing: Callable[[Callable[[], None]], Store]
) -> None:
    """As where a signal's handler raises while the entry is handed on."""
    found = passing(lambda: None).read(entry.name)
    assert found is not None
    assert found.memory is not None
    assert len(open_of(entry)) == 3
    del found
    assert not open_of(entry)
