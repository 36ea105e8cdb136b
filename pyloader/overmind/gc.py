"""``overmind gc``: the budget of a cache in a plain directory, which has no daemon to keep one."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from overmind import directory
from overmind.autostart import mount_owner
from overmind.errors import StoreError
from overmind.reclaim import Cache, Removed, Report

OK, FAILED, USAGE, NO_CACHE = 0, 1, 2, 3

_UNITS = {'': 1, 'b': 1}
for _power, _letter in enumerate('kmgt', 1):
    _UNITS.update({_letter: 1000**_power, f'{_letter}b': 1000**_power, f'{_letter}ib': 1024**_power})
_TIMES = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400, 'w': 7 * 86400}


class _NoCache(Exception):
    pass


def main(words: Sequence[str]) -> int:
    """Exit code: 0 ok, 1 failed or not all of it could go, 2 usage, 3 there is no such cache."""
    try:
        args = _parser().parse_args(words)
    except SystemExit as e:
        return int(e.code or 0)
    root = args.dir or os.environ.get('OVERMIND_ROOT', '').strip()
    if not root:
        return _fail('which folder? name it, or set OVERMIND_ROOT', USAGE)
    root = os.path.abspath(os.path.expanduser(root))
    try:
        _check(root)
        cache = Cache(root, args.dry_run)
        try:
            report = cache.collect(args.max_bytes, args.max_age)
        finally:
            cache.close()
    except _NoCache as e:
        return _fail(str(e), NO_CACHE)
    except OSError as e:
        return _fail(f'{e.filename or root}: {e.strerror}', FAILED)
    _print(report, args.dry_run)
    if report.unreadable:
        what = f'{len(report.unreadable)} more entries cannot be read and stay, {report.unreadable[0]} for one'
        return _fail(f'{what}: permission denied; root can, with OVERMIND_TRUST=UID of the owner of the folder', FAILED)
    if args.max_bytes is not None and report.kept_bytes > args.max_bytes:
        left = f'{_size(report.kept_bytes)} are left, more than {_size(args.max_bytes)}'
        return _fail(f'{left}: the rest is in use', FAILED)
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='overmind gc',
        description='Removes entries from a cache that is a plain folder, without a daemon: those that nobody has used '
        'for some time, then those unused for longest until the rest fits; and what killed processes left behind. What '
        'a process has mapped stays. Exit codes: 0 ok, 1 failed or still too large, 2 usage, 3 no such cache.',
    )
    parser.add_argument('dir', nargs='?', metavar='DIR', help='the folder (default OVERMIND_ROOT)')
    parser.add_argument('--max-bytes', type=_bytes, metavar='SIZE', help='what may be left, such as 16GiB')
    parser.add_argument('--max-age', type=_seconds, metavar='TIME', help='90m, 24h, 7d: entries unused for longer go')
    parser.add_argument('--dry-run', action='store_true', help='only say what would go')
    return parser


def _bytes(text: str) -> int:
    found = re.fullmatch(r'(\d+(?:\.\d+)?)\s*([a-z]*)', text.strip().lower())
    if not found or found[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f'{text!r} is not a size such as 16GiB')
    return int(float(found[1]) * _UNITS[found[2]])


def _seconds(text: str) -> float:
    found = re.fullmatch(r'(\d+)([smhdw])', text.strip().lower())
    if not found:
        raise argparse.ArgumentTypeError(f'{text!r} is not a time such as 90m, 24h or 7d')
    return float(int(found[1]) * _TIMES[found[2]])


def _check(root: str) -> None:
    """Raises _NoCache. A mount is not touched: its daemon may hang."""
    real = os.path.join(os.path.realpath(os.path.dirname(root)), os.path.basename(root))
    if mount_owner(real) is not None:
        raise _NoCache(f'{root} is a mount: its daemon has a budget; see overmind-fs evict, and --max-bytes of mount')
    try:
        found = directory.format_of(root)
    except NotADirectoryError:
        found = None
    except StoreError as e:
        raise _NoCache(str(e)) from e
    if found is None:
        raise _NoCache(f'{root} is not a cache: it has no {directory.TAG} of overmind-fs')
    if found != directory.FORMAT:
        raise _NoCache(f'{root} is a cache of format {found}, and this is for format {directory.FORMAT}')


def _print(report: Report, dry_run: bool) -> None:
    for one in report.removed:
        if one.kind != 'lock':
            print(_line(one))
    for id in report.busy:
        print(f'in use  {id}')
    entries = [one for one in report.removed if one.kind == 'entry']
    fills = sum(one.kind == 'fill' for one in report.removed)
    freed = sum(one.nbytes for one in report.removed)
    print(
        f'{"would remove" if dry_run else "removed"} {len(entries)} entries and {fills} dead fills, {_size(freed)}; '
        f'{report.kept} entries are left, {_size(report.kept_bytes)}'
    )


def _line(one: Removed) -> str:
    return f'{one.kind:5}  {_size(one.nbytes):>11}  unused for {_age(one.idle_seconds):>4}  {one.name}'


def _size(nbytes: int) -> str:
    value, unit = float(nbytes), 'B'
    for unit in ('B', 'KiB', 'MiB', 'GiB', 'TiB'):
        if value < 1024 or unit == 'TiB':
            break
        value /= 1024
    return f'{value:.0f} B' if unit == 'B' else f'{value:.1f} {unit}'


def _age(seconds: float) -> str:
    for unit in ('d', 'h', 'm'):
        if seconds >= _TIMES[unit]:
            return f'{seconds / _TIMES[unit]:.0f}{unit}'
    return f'{max(seconds, 0):.0f}s'


def _fail(text: str, code: int) -> int:
    print(f'overmind gc: {text}', file=sys.stderr)
    return code
