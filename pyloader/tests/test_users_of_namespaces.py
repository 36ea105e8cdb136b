"""Uids in user namespaces."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from overmind import cache, users
from overmind.settings import Settings

NOBODY = 65534
IN_A_NAMESPACE = ['unshare', '--user', sys.executable, '-c']


def in_a_namespace(script: str) -> str:
    if subprocess.run([*IN_A_NAMESPACE, ''], check=False, capture_output=True).returncode:
        pytest.skip('no user namespaces here')
    return subprocess.run([*IN_A_NAMESPACE, script], check=True, capture_output=True, text=True).stdout


def test_the_uid_of_all_who_have_none() -> None:
    assert not users.unmapped(NOBODY)
    script = f'from overmind.users import unmapped; print(unmapped({NOBODY}), unmapped(0))'
    assert in_a_namespace(script) == 'True False\n'


def test_entries_of_somebody_without_a_uid_are_not_read() -> None:
    script = f"""
from overmind.cache import untrusted
from overmind.settings import Settings
print(untrusted({NOBODY}, Settings(trust=({NOBODY}, 0))), untrusted(0, Settings(trust=({NOBODY}, 0))))
"""
    assert in_a_namespace(script) == 'its owner has no uid in this user namespace None\n'
    assert cache.untrusted(NOBODY, Settings(trust=(NOBODY,))) is None


def test_folder_of_somebody_without_a_uid_is_no_cache(tmp_path: pathlib.Path) -> None:
    """Its entries would never be read, and be made anew by each load."""
    script = f"""
from overmind.directory import prepare
from overmind.errors import StoreError
try:
    prepare({str(tmp_path)!r})
except StoreError as e:
    print(e)
"""
    assert in_a_namespace(script) == f'{tmp_path} belongs to a user who has no uid in this user namespace\n'
    assert list(tmp_path.iterdir()) == []
