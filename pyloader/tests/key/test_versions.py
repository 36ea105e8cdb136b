"""Versions come from folder names, and agree with importlib.metadata."""

import importlib.metadata
import sys

import pytest

from overmind.key import versions
from overmind.key.versions import check, installed, normalize, used


def test_agrees_with_the_standard_library():
    expected = {}
    for d in importlib.metadata.distributions():
        if d.metadata['Name']:
            expected.setdefault(normalize(d.metadata['Name']), d.version)
    found = installed()
    assert {n: v for n, v in found.items() if n in expected} == {n: v for n, v in expected.items() if n in found}
    assert len(expected.keys() - found.keys()) == 0


@pytest.mark.parametrize(
    ('folder', 'name', 'version'),
    [
        ('torch-2.9.1+cpu.dist-info', 'torch', '2.9.1+cpu'),
        ('Flash_Attn-2.8.0.post1.dist-info', 'flash-attn', '2.8.0.post1'),
        ('old.name-1.0-py3.11.egg-info', 'old-name', '1.0'),
        ('ext-1.0-py3.11-linux-x86_64.egg-info', 'ext', '1.0'),
        ('a-b-1.0rc1.dist-info', 'a-b', '1.0rc1'),
    ],
)
def test_folder_names(tmp_path, monkeypatch, folder, name, version):
    (tmp_path / folder).mkdir()
    monkeypatch.setattr(sys, 'path', [str(tmp_path)])
    assert dict(installed()) == {name: version}


def test_development_folder(tmp_path, monkeypatch):
    (tmp_path / 'mine.egg-info').mkdir()
    (tmp_path / 'mine.egg-info' / 'PKG-INFO').write_text('Name: mine\nVersion: 3.1\n')
    monkeypatch.setattr(sys, 'path', [str(tmp_path)])
    assert dict(installed()) == {'mine': '3.1'}


def test_changes_are_seen(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / 'thing-1.0.dist-info').mkdir()
    recorded = [('thing', '1.0'), ('absent-thing', '')]
    assert check(recorded) is None
    (tmp_path / 'absent_thing-2.0.dist-info').mkdir()
    assert check(recorded) == 'absent-thing: absent when it was loaded, now 2.0'
    (tmp_path / 'absent_thing-2.0.dist-info').rmdir()
    (tmp_path / 'thing-1.0.dist-info').rename(tmp_path / 'thing-1.1.dist-info')
    assert check(recorded) == 'thing: 1.0 when it was loaded, now 1.1'


def test_first_on_the_path_wins(tmp_path, monkeypatch):
    for i in '12':
        (tmp_path / i / f'thing-{i}.dist-info').mkdir(parents=True)
    monkeypatch.setattr(sys, 'path', [str(tmp_path / '2'), str(tmp_path / '1')])
    assert dict(installed()) == {'thing': '2'}


def test_used():
    pytest.importorskip('torch')
    found = dict(used())
    assert found['torch'] == importlib.metadata.version('torch')
    assert found['numpy'] == importlib.metadata.version('numpy')
    assert not {'pytest', 'hypothesis', 'pip', 'overmind-fs', 'setuptools'} & found.keys()
    assert found.get('apex', 'x') == ''
    assert check(used()) is None


def test_optional_extras(tmp_path, monkeypatch):
    place = tmp_path / 'lib-1.0.dist-info'
    place.mkdir()
    (tmp_path / 'somelib.py').write_text('')
    (place / 'RECORD').write_text('somelib.py,,\nlib-1.0.dist-info/RECORD,,\n')
    (place / 'METADATA').write_text(
        'Name: lib\nVersion: 1.0\nRequires-Dist: torch>=2\nRequires-Dist: Fast_Kernel; extra == "fast"\n'
        'Requires-Dist: linter; extra == "dev"\nRequires-Dist: needed\n\nRequires-Dist: text; extra == "x"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import somelib  # noqa: F401

    found = dict(used())
    assert found['lib'] == '1.0'
    assert found['fast-kernel'] == ''
    assert not {'linter', 'needed', 'text'} & found.keys()
    del sys.modules['somelib']
    versions._scan.cache_clear()
