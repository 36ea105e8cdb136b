"""Programs that end, are interrupted, killed or replaced while an entry of theirs is written."""

from __future__ import annotations

import fcntl
import os
import pathlib
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time

import pytest


@pytest.fixture(autouse=True)
def _meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OVERMIND_FILL', 'background')


def entries(root: pathlib.Path) -> list[str]:
    return os.listdir(root / 'pipelines')


def script(root: pathlib.Path, text: str, *, strict: bool = True) -> list[str]:
    path = root.parent / 'script.py'
    path.write_text(
        'import os, sys, time, torch, threading\nfrom overmind.api import load, stats, finish_fills\n'
        'def large(n):\n    return [torch.full((n,), i, dtype=torch.uint8) for i in range(8)]\n' + textwrap.dedent(text)
    )
    os.environ['OVERMIND_STRICT'] = str(int(strict))
    return [sys.executable, str(path)]


@pytest.mark.parametrize(
    ('end', 'code'),
    [
        ('', 0),
        ('sys.exit(3)', 3),
        ('raise KeyError(1)', 1),
        ('threading.Thread(target=load, args=(large, 5_000_000)).start()', 0),
    ],
)
def test_a_program_ends_when_it_is_there(root: pathlib.Path, end: str, code: int) -> None:
    done = subprocess.run(script(root, f'load(large, 40_000_000)\n{end}'), timeout=120, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert len(entries(root)) == 1 + ('Thread' in end)
    assert 'overmind' not in done.stderr


def test_a_program_that_is_killed_leaves_nothing(root: pathlib.Path) -> None:
    line = script(
        root,
        """
        from overmind import copier
        copier.Copier.copy = lambda *_, **__: (print('copying', flush=True), time.sleep(60))
        load(large, 40_000_000)
        """,
    )
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == 'copying\n'
        (child,) = children(program.pid)
        program.kill()
        program.wait()
    until = time.monotonic() + 60
    while running(child):
        assert time.monotonic() < until, 'the copier lives on'
        time.sleep(0.01)
    assert entries(root) == []
    done = subprocess.run(script(root, 'load(large, 40_000_000)\nassert stats().misses == 1'), timeout=120)
    assert done.returncode == 0
    assert len(entries(root)) == 1


def children(pid: int) -> list[int]:
    return [int(n) for path in pathlib.Path(f'/proc/{pid}/task').glob('*/children') for n in path.read_text().split()]


def running(pid: int) -> bool:
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().split()[2] not in 'ZX'
    except FileNotFoundError:
        return False


@pytest.mark.parametrize('number', [1, 2])
def test_who_waits_at_the_end_can_interrupt_it(root: pathlib.Path, number: int) -> None:
    """And nothing stays behind, of however many."""
    line = script(
        root,
        f"""
        import pathlib, signal
        for i in range({number}):
            load(large, 40_000_000 + i)
        for path in pathlib.Path('/proc/self/task').glob('*/children'):
            for child in path.read_text().split():
                os.kill(int(child), signal.SIGSTOP)
        print('done', flush=True)
        """,
        strict=False,
    )
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == 'done\n'
        time.sleep(0.5)
        left = children(program.pid)
        program.send_signal(signal.SIGINT)
        _, complaints = program.communicate(timeout=60)
    assert left
    assert entries(root) == os.listdir(root / 'staging') == []
    assert 'not kept in the cache: the program was interrupted while it was written' in complaints
    assert not any(running(child) for child in left)


def test_who_waits_in_the_middle_of_a_copy_is_told(root: pathlib.Path) -> None:
    """Also where the program ends long after the copy has begun."""
    line = script(
        root,
        """
        from overmind import copier
        begun = threading.Event()
        copier.Copier.copy = lambda *_, **__: (begun.set(), time.sleep(1000))
        load(large, 40_000_000)
        assert begun.wait(60)
        """,
    )
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('4H', 25, 120, 0, 0))
    text, until = '', time.monotonic() + 60
    with subprocess.Popen(line, stderr=theirs) as program:
        try:
            while 'the program is done; writing large-' not in text:
                assert time.monotonic() < until, text
                if select.select([ours], [], [], 1)[0]:
                    text += os.read(ours, 4096).decode()
        finally:
            program.kill()
    os.close(ours)
    os.close(theirs)


def test_an_exec_in_the_middle(root: pathlib.Path) -> None:
    """As programs do that start themselves anew."""
    line = script(
        root,
        """
        load(large, 40_000_000)
        if len(sys.argv) == 1:
            os.execv(sys.executable, [sys.executable, __file__, 'again'])
        finish_fills()
        print(stats().misses + stats().hits)
        """,
    )
    done = subprocess.run(line, timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, '1\n'), done.stderr
    assert len(entries(root)) == 1


def test_workers_of_a_pool_write_first(root: pathlib.Path) -> None:
    """Their pool ends them by a signal."""
    line = script(
        root,
        """
        import multiprocessing
        os.environ['OVERMIND_FILL'] = 'auto'

        def work(n):
            load(large, n)
            return stats().misses

        if __name__ == '__main__':
            with multiprocessing.get_context('fork').Pool(1) as pool:
                assert pool.map(work, [40_000_000]) == [1]
        """,
    )
    done = subprocess.run(line, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(entries(root)) == 1
