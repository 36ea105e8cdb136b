"""``make demo``: one pipeline loaded in four new processes, without the cache, then with it three times."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from integration.checkpoints import build
from integration.harness.daemon import Daemon, DaemonError, command
from integration.harness.places import checkpoint_folder
from integration.harness.progress import progress
from integration.harness.runs import RunError, environment, run, start_waiting
from integration.harness.table import megabytes, seconds, table

LOADS = 4
DIRTY_LIMIT = 30e6
WITHOUT, FIRST, SECOND, THIRD = 'without the cache', 'first load', 'second load', 'third load'


def say(text: str = '') -> None:
    print(text, flush=True)


def measured(checkpoint: Path, root: Path) -> dict[str, dict[str, Any]]:
    """Each run's result, by its name. The second load's process is still there while the third one loads.

    The kernel counts a page as private as long as one process maps it, so sharing shows with two.
    """
    options = ('--touch', '--weights', '--forward')
    results = {}
    with progress(f'a new process, {WITHOUT}'):
        results[WITHOUT] = run(checkpoint, *options, env=environment())
    with progress(f'a new process, {FIRST}'):
        results[FIRST] = run(checkpoint, *options, '--cache', env=environment(root))
    with ExitStack() as stack:
        second = stack.enter_context(start_waiting(checkpoint, *options, '--cache', env=environment(root)))
        with progress(f'a new process, {SECOND}'):
            second.read()
            results[SECOND] = second.ask()
        with progress(f'a new process, {THIRD}, beside the second'):
            third = stack.enter_context(start_waiting(checkpoint, *options, '--cache', env=environment(root)))
            third.read()
            results[THIRD] = third.ask()
        results[SECOND]['after'] = second.ask()['memory']
    return results


def figures(results: dict[str, dict[str, Any]]) -> str:
    kinds = ['resident', 'proportional', 'private dirty', 'anonymous']
    head = ['', 'import', 'load', 'touch every page', 'first prompt', *kinds]
    rows = []
    for name, result in results.items():
        spent = [result['seconds'][stage] for stage in ('import', 'load', 'touch', 'prompt')]
        grown = [
            result['after'][what] - result['before'][what] for what in ('rss', 'pss', 'private_dirty', 'anonymous')
        ]
        # While it is copied the first load's memory counts as shared with the copier, and says nothing.
        rows.append([name, *map(seconds, spent), *(['-'] * 4 if name == FIRST else map(megabytes, grown))])
    return table(head, rows)


def same(result: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(result['weights'] == other['weights'] and result['outputs'] == other['outputs'])


def broken(results: dict[str, dict[str, Any]]) -> list[str]:
    """What did not hold."""
    found = []
    plain, third = results[WITHOUT], results[THIRD]
    for name, result in results.items():
        if not same(result, plain):
            found.append(f'{name}: weights or outputs differ from those of the load without the cache')
        if not result['outputs']['finite']:
            found.append(f'{name}: outputs are not finite')
        if not result['vae_is_the_same']:
            found.append(f'{name}: pipe.vae is not the VAE that was passed in')
    hits = {'hits': LOADS, 'misses': 0}
    for name, expected in ((FIRST, {'hits': 0, 'misses': LOADS}), (SECOND, hits), (THIRD, hits)):
        stats = results[name]['stats']
        counts = {what: stats[what] for what in ('hits', 'misses', 'bypasses')}
        if counts != {**expected, 'bypasses': 0}:
            found.append(f'{name}: counted {counts}: {stats["reasons"]}')
    dirty = third['after']['private_dirty'] - third['before']['private_dirty']
    if dirty >= DIRTY_LIMIT:
        found.append(f'{THIRD}: {megabytes(dirty)} of private dirty memory, more than {megabytes(DIRTY_LIMIT)}')
    return found


def listing(root: Path) -> str:
    """The mount as `find` shows it, with the many storages left out."""
    lines = []
    for folder, folders, files in os.walk(root):
        folders.sort()
        depth = len(Path(folder).relative_to(root).parts)
        lines.append('  ' * depth + f'{Path(folder).name}/')
        shown = sorted(files)[:3] if Path(folder).name == 'storages' else sorted(files)
        for name in shown:
            path = Path(folder, name)
            what = f' -> {os.readlink(path)}' if path.is_symlink() else f'  {path.stat().st_size:,}'
            lines.append('  ' * (depth + 1) + name + what)
        if len(shown) < len(files):
            lines.append('  ' * (depth + 1) + f'... and {len(files) - len(shown):,} more')
    return '\n'.join(lines)


def demo() -> int:
    checkpoint = checkpoint_folder('true', 'fp16')
    with progress('Stable Diffusion 1.5 and two ControlNets, random weights (made once)'):
        build(checkpoint, 'true', 'fp16')
    with tempfile.TemporaryDirectory(prefix='overmind-demo-') as folder:
        root = Path(folder, 'mnt')
        with Daemon(root):
            say(f'overmind-fs is mounted on {root}\n')
            results = measured(checkpoint, root)
            say(f'\n$ overmind-fs ls\n{command("ls", root=root).stdout}')
            say(f'$ find {root}\n{listing(root)}')
    say(f'\n{figures(results)}')
    say('Memory is what loading, touching and a prompt added to a process that had imported the libraries; of the')
    say('second load while the third has the same weights mapped. The first writes while its program goes on.\n')
    problems = broken(results)
    plain = results[WITHOUT]
    equal = 'yes' if all(same(result, plain) for result in results.values()) else 'NO'
    say(f'The weights ({plain["bytes"] / 1e9:.2f} GB) and all outputs are equal bit for bit in all four: {equal}')
    for problem in problems:
        say(f'FAILED: {problem}')
    return 1 if problems else 0


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return demo()
    except (DaemonError, RunError) as error:
        say(f'FAILED: {error}')
    except KeyboardInterrupt:
        say('interrupted; nothing is left mounted')
        return 128 + signal.SIGINT
    return 1


if __name__ == '__main__':
    sys.exit(main())
