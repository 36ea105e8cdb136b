"""A module of a user's, written anew as often as a test wants."""

import importlib
import sys
import textwrap

import pytest

from overmind.key.code import fingerprint


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules, imports the first one anew and gives the fingerprint of its ``make``."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, 'dont_write_bytecode', True)

    def run(source, **others):
        for name, text in {'user_code': source, **others}.items():
            path = tmp_path / (name.replace('.', '/') + '.py')
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(text))
        for name in list(sys.modules):
            if name.partition('.')[0] in {'user_code', *(o.partition('.')[0] for o in others)}:
                del sys.modules[name]
        importlib.invalidate_caches()
        return fingerprint(importlib.import_module('user_code').make)

    yield run
    for name in [n for n in sys.modules if n.startswith(('user_code', 'helper', 'pack'))]:
        del sys.modules[name]
