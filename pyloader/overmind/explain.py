"""Whether a call would be a hit, and if not, what is in the way; nothing is loaded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from overmind.key.lookup import LookupKey
    from overmind.manifest import Manifest
    from overmind.settings import Settings
    from overmind.statistics import Outcome
    from overmind.store import Store

P = ParamSpec('P')

MAX_MANIFESTS = 50
ABSENT = '(none)'
_SHOWN = 12
_WIDTH = 100

Difference = tuple[str, str, str]


@dataclass(frozen=True)
class Explanation:
    """What a call would be, and why. ``differences`` are (ingredient, in the nearest entry, now), those of the key
    first, then files, folders and versions; ``nearest`` is the id of the entry that they refer to. ``str()`` of it is
    for a terminal."""

    outcome: Outcome
    id: str
    reason: str
    differences: list[Difference] = field(default_factory=list)
    nearest: str | None = None

    def __str__(self) -> str:
        lines = [f'{self.outcome}: {self.id}' if self.id else self.outcome, f'  {self.reason}']
        if self.differences and self.nearest is not None:
            here = self.nearest == self.id
            lines.append('  in the entry, and now:' if here else f'  in {self.nearest}, and now:')
        for name, then, now in self.differences[:_SHOWN]:
            line = f'    {name}: {then} -> {now}'
            lines += [line] if len(line) <= _WIDTH else [f'    {name}:', f'      {then}', f'      -> {now}']
        if len(self.differences) > _SHOWN:
            lines.append(f'    and {len(self.differences) - _SHOWN} more')
        return '\n'.join(lines)


def explain(fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
    """Whether ``load(fn, *args, **kwargs)``, or the same call of a patched loader, would be a hit now.

    ``hit``: the entry is there, trusted, whole and up to date. ``miss``: it is not, and ``differences`` tells what is
    unlike the nearest entry: of at most 50 whose ids begin with the same class and model, the one with the same loader
    and scope, and of several the one whose key has most facts in common. ``bypass``: the call would not use the cache:
    an argument that no key can be made of, no mount, or an earlier call in this process whose result could not be
    kept. Calls no loader, starts no daemon, counts nothing and raises nothing.

    A hit is a promise about the entry, not about the rebuild; and a miss can still turn out as a bypass, since whether
    a result can be kept is known only when it is there.
    """
    from overmind.cache import failure
    from overmind.nesting import inside
    from overmind.patches import unwrapped
    from overmind.settings import current

    settings = current()
    if settings.disabled:
        return Explanation('bypass', '', 'OVERMIND_DISABLE is set')
    if inside():
        return Explanation('bypass', '', 'a loader that is called by another loader is not cached')
    try:
        return _explain(unwrapped(fn), args, kwargs, settings)
    except Exception as e:
        return Explanation('bypass', '', str(failure(e)))


def _explain(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings) -> Explanation:
    from overmind import cache
    from overmind.errors import CorruptEntry, OvermindError

    if settings.root is None and settings.autostart:
        from overmind.autostart import running_root

        if running_root(settings) is None:
            return Explanation('miss', '', 'no daemon runs yet; a load starts one, whose cache is empty')
    store, key, _ = cache.prepare(fn, args, kwargs, settings)
    why = cache.given_up(key)
    if why is not None:
        return Explanation('bypass', key.id, f'an earlier call in this process could not be kept: {why}')
    try:
        found = store.peek(key.id, settings.trust)
    except CorruptEntry as e:
        return Explanation('bypass' if settings.strict else 'miss', key.id, f'the entry is damaged: {e}')
    except OvermindError as e:
        return Explanation('bypass', key.id, str(e))
    if found is None:
        return _absent(store, key)
    manifest, owner = found
    why = cache.untrusted(owner, settings)
    if why is not None:
        return Explanation('bypass', key.id, why, [('owner', f'uid {owner}', f'uid {os.geteuid()}')], key.id)
    why = cache.stale(manifest, key)
    if why is not None:
        return Explanation('miss', key.id, why, _differences(manifest, key), key.id)
    return Explanation('hit', key.id, 'the entry is there and up to date')


def _absent(store: Store, key: LookupKey) -> Explanation:
    near = _nearest(store.beginning_with(key.id.removesuffix(key.digest[:12]), MAX_MANIFESTS), key)
    fetch = '; the repository is not in the local cache of the hub' if key.hub_unresolved else ''
    if near is None:
        return Explanation('miss', key.id, f'not in the cache, and no entry of this class and model is{fetch}')
    found = _differences(near, key)
    names = list(dict.fromkeys(name for name, _, _ in found))
    what = ', '.join(names[:3]) + (f' and {len(names) - 3} more' if len(names) > 3 else '')
    if not found:
        what = 'something that manifests do not show, such as the text of a secret'
    return Explanation('miss', key.id, f'not in the cache; the nearest entry differs in {what}{fetch}', found, near.id)


def _nearest(manifests: Iterable[Manifest], key: LookupKey) -> Manifest | None:
    facts = set(key.facts)

    def likeness(m: Manifest) -> tuple[bool, bool, int]:
        return m.loader == key.loader, m.scope == key.scope, len(facts.intersection(m.key))

    return max(manifests, key=likeness, default=None)


def _differences(manifest: Manifest, key: LookupKey) -> list[Difference]:
    then, now = dict(manifest.key), dict(key.facts)
    then.pop('digest', None)
    found = [(name, then.get(name, ABSENT), now.get(name, ABSENT)) for name in dict.fromkeys((*now, *then))]
    return [d for d in found if d[1] != d[2]] + list(_inputs(manifest))


def _inputs(manifest: Manifest) -> Iterator[Difference]:
    """What ``cache.stale`` would find, all of it."""
    from overmind.key import inputs, versions

    for source in manifest.sources:
        if inputs.check([source], []) is not None:
            yield source.path, _file(source.nbytes, source.mtime_ns, source.ctime_ns), _look(source.path)
    for listing in manifest.listings:
        why = inputs.check([], [listing])
        if why is not None:
            name = 'working directory' if listing.path == inputs.WORKING_DIRECTORY else listing.path
            yield (
                name,
                'as recorded',
                os.getcwd() if listing.path == inputs.WORKING_DIRECTORY else why.rpartition(': ')[2],
            )
    installed = versions.installed()
    for name, version in manifest.distributions:
        if installed.get(name, '') != version:
            yield f'version of {name}', version or ABSENT, installed.get(name) or ABSENT


def _look(path: str) -> str:
    try:
        s = os.stat(path)
    except OSError as e:
        return (e.strerror or str(e)).lower()
    return _file(s.st_size, s.st_mtime_ns, s.st_ctime_ns)


def _file(nbytes: int, mtime_ns: int, ctime_ns: int) -> str:
    """Both times: tools such as cp -p and git keep or set the first, nothing the second."""
    return f'{nbytes} bytes, written {_time(mtime_ns)}, changed {_time(ctime_ns)}'


def _time(ns: int) -> str:
    return f'{time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ns // 10**9))}.{ns // 10**6 % 1000:03d}'
