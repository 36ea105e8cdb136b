"""The local cache of the hub, laid out by hand: what huggingface_hub leaves after a download."""

from __future__ import annotations

import hashlib
import os
import pathlib


class Repository:
    """``models--org--name`` below a cache folder."""

    def __init__(self, hub: pathlib.Path, name: str) -> None:
        self.path = hub / ('models--' + name.replace('/', '--'))

    def commit(self, files: pathlib.Path, commit: str, *refs: str) -> None:
        """Store a folder's files as a commit, with refs that name it."""
        snapshot = self.path / 'snapshots' / commit
        snapshot.mkdir(parents=True)
        (self.path / 'blobs').mkdir(exist_ok=True)
        for file in files.iterdir():
            data = file.read_bytes()
            blob = self.path / 'blobs' / hashlib.sha256(data).hexdigest()
            blob.write_bytes(data)
            (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
        for ref in refs:
            self.ref(ref, commit)

    def ref(self, name: str, commit: str) -> None:
        """Make a branch or tag name a commit."""
        path = self.path / 'refs' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)

    def blob(self, commit: str, name: str) -> pathlib.Path:
        """Where a file's content lies."""
        return (self.path / 'snapshots' / commit / name).resolve()
