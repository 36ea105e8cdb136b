"""``make compatibility``: the table docs/compatibility.md, from the results of the acceptance cases.

Each argument is a file of results; the versions of the libraries that ran are in the file beside it that
:mod:`integration.cases` writes.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from integration.cases import LIBRARIES, versions_file
from integration.harness.places import REPOSITORY
from integration.titles import GROUPS, group, title

_LONGEST = 110
_INTRODUCTION = """\
# Compatibility

<!-- Made by `make compatibility`. Do not edit. -->

What was counted when the acceptance cases ran: tiny but real models, loaded once without the cache and then through it,
each time in another process. In every case below that did not fail, the object was what the real loader gives: the same
output bit for bit, the same classes, dtypes, strides, shared storages, hooks, flags and configuration.

- **hit**: every load came from the cache, but the first one and the first one after a change of its inputs.
- **bypass**: the real loader was called each time, since the object cannot be kept or the cache cannot be used.
- **called** says how: `patched` is the library's own function after `monkey_patch_all()`, `load` is
  `overmind.api.load(function, ...)`.
"""


@dataclass(frozen=True)
class Outcome:
    """What one case came to in one set of versions."""

    kind: str  # hit, bypass, skipped, failed
    why: str
    loader: str
    way: str  # patched or load


@dataclass(frozen=True)
class Results:
    """One run of the cases."""

    versions: dict[str, str]
    outcomes: dict[str, Outcome]  # by full name of the case

    @property
    def label(self) -> str:
        return ', '.join(f'{name} {short(self.versions[name])}' for name in LIBRARIES[:3] if name in self.versions)


def short(version: str) -> str:
    """Major and minor of a version."""
    return '.'.join(version.partition('+')[0].split('.')[:2])


def read(path: Path) -> Results:
    versions = json.loads(versions_file(path).read_text())
    return Results(versions, {report['case']: outcome(report) for report in json.loads(path.read_text())})


def outcome(report: dict[str, Any]) -> Outcome:
    loads = [r for step in report['steps'] if step['role'] == 'load' for r in step['results']]
    said = [pair for r in loads for pair in reasons(r.get('reasons', ''))]
    counted = [r['counters'] for r in loads if 'counters' in r]
    kind, why = report['status'], report['why']
    if kind == 'passed':
        kind = 'hit' if any(c['hits'] for c in counted) else 'miss'
        if any(c['bypasses'] for c in counted):
            kind, why = 'bypass', said[-1][1] if said else ''
    return Outcome(kind, shortened(why), readable_loader(said[-1][0]) if said else '', report['via'])


def reasons(text: str) -> list[tuple[str, str]]:
    """Pairs of a loader and a reason; text is the repr of a list and may have been cut off."""
    for end in ('', "']", '"]', ']'):
        try:
            found = ast.literal_eval(text + end)
        except (SyntaxError, ValueError):
            continue
        parts = [str(line).partition(': ') for line in found]
        return [(loader, reason) for loader, colon, reason in parts if colon]
    return []


def readable_loader(name: str) -> str:
    """``diffusers.AutoencoderKL.from_pretrained`` for the full path of it; what the suite defines is a user's own."""
    top, *parts = name.split('.')
    if top in ('zoo', 'user_loader') or not parts:
        return 'own function'
    classes = [i for i, part in enumerate(parts) if part[0].isupper()]
    kept = parts[classes[-1] :] if classes else parts[-1:]
    if not classes and parts[0] in ('export', 'jit', 'torch'):
        kept = [parts[0], *kept]
    return '`' + '.'.join(kept if top == 'builtins' else [top, *kept]) + '`'


def shortened(reason: str) -> str:
    """One line without paths of this machine, and safe in a table."""
    text = re.sub(r'(?<![\w.])/[^\s,;:)\'"]+', '…', ' '.join(reason.split())).replace('|', '\\|')
    text = text.replace('<', '&lt;')
    return text if len(text) <= _LONGEST else text[:_LONGEST].rsplit(' ', 1)[0] + ' …'


@dataclass(frozen=True)
class Row:
    name: str  # without the way
    ways: tuple[str, ...]
    outcomes: tuple[Outcome | None, ...]  # one a set of versions


def rows(sets: Sequence[Results]) -> list[Row]:
    """One a case, in the order of the suite; the two ways of a case are one row where they came to the same."""
    found: dict[tuple[str, tuple[str, ...]], Row] = {}
    for full in dict.fromkeys(name for results in sets for name in results.outcomes):
        outcomes = tuple(results.outcomes.get(full) for results in sets)
        way = next(o.way for o in outcomes if o)
        name = full.removesuffix(f'.{way}')
        key = name, tuple(o.kind if o else '' for o in outcomes)
        before = found.setdefault(key, Row(name, (), outcomes))
        found[key] = replace(before, ways=(*before.ways, way))
    return list(found.values())


def cells(row: Row) -> list[str]:
    known = [o for o in row.outcomes if o is not None]
    loader = next((o.loader for o in known if o.loader), '')
    kinds = [o.kind if o else '-' for o in row.outcomes]
    why = '; '.join(dict.fromkeys(o.why for o in known if o.why))
    return [title(row.name), loader, ', '.join(row.ways), *kinds, why]


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in (head, ['---'] * len(head), *lines))


def page(sets: Sequence[Results]) -> str:
    """The whole of docs/compatibility.md."""
    heads = [f'torch {short(results.versions["torch"])}' for results in sets]
    names = [n for n in ('Python', *LIBRARIES) if any(n in results.versions for results in sets)]
    versions = [[n, *(results.versions.get(n, '-').partition('+')[0] for results in sets)] for n in names]
    kinds = ('hit', 'bypass', 'miss', 'skipped', 'failed')
    counts = [[k, *(str(sum(o.kind == k for o in r.outcomes.values())) for r in sets)] for k in kinds]
    parts = [
        _INTRODUCTION,
        table(['', *(results.label for results in sets)], [*versions, *(c for c in counts if set(c[1:]) != {'0'})]),
    ]
    grouped: dict[str, list[Row]] = {heading: [] for heading in GROUPS.values()}
    for row in rows(sets):
        grouped.setdefault(group(row.name), []).append(row)
    for heading, members in grouped.items():
        if members:
            parts += [f'\n## {heading}\n', table(['loaded', 'by', 'called', *heads, 'why'], map(cells, members))]
    return '\n'.join(parts) + '\n'


def main(line: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog='python -m integration.compatibility', description=__doc__)
    parser.add_argument('results', nargs='+', type=Path)
    parser.add_argument('-o', type=Path, dest='out', default=REPOSITORY / 'docs' / 'compatibility.md')
    arguments = parser.parse_args(line)
    arguments.out.write_text(page([read(path) for path in arguments.results]))
    return 0


if __name__ == '__main__':
    sys.exit(main())
