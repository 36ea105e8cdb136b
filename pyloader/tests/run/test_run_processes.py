"""Signals, exits, file descriptors, kills at any moment, and many runs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
import signal
import subprocess

import pytest
from warmbench import Bench, output

SLEEPER = """
import os, signal, sys, toylib
def note(number, frame): os.write(1, f'{signal.Signals(number).name}\\n'.encode())
for name in sys.argv[1:]: signal.signal(getattr(signal, name), note)
os.write(1, b'ready\\n')
while True: signal.pause()
"""
RUNS = int(os.environ.get('OVERMIND_RUN_CYCLES', '150'))


@pytest.fixture
def warm(bench: Bench) -> Bench:
    bench.write('app.py', SLEEPER)
    bench.write('quick.py', 'import toylib, os\nprint(os.getpid())')
    bench.warm_up('quick.py')
    return bench


def line(run: subprocess.Popen[bytes]) -> str:
    assert run.stdout is not None
    return run.stdout.readline().decode().strip()


def gone(pid: int) -> bool:
    try:
        return pathlib.Path('/proc', str(pid), 'stat').read_text().rpartition(')')[2].split()[0] == 'Z'
    except FileNotFoundError:
        return True


def state(pid: int) -> str:
    return pathlib.Path('/proc', str(pid), 'stat').read_text().rpartition(')')[2].split()[0]


def child(bench: Bench, run: subprocess.Popen[bytes]) -> int:
    """The process of the program, which prints it first."""
    return int(line(run))


SHOW = 'import os\nprint(os.getpid(), flush=True)\n'


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT', 'SIGUSR1'])
def test_a_signal_to_the_caller_ends_the_program_as_it_ends_python(warm: Bench, name: str) -> None:
    ends = []
    for start in (warm.start('app.py'), warm.start('app.py')):
        assert line(start) == 'ready'
        start.send_signal(getattr(signal, name))
        ends.append((start.wait(60), b'KeyboardInterrupt' in start.communicate()[1]))
    expected = (-getattr(signal, name), name == 'SIGINT')
    assert ends == [expected] * 2


def test_handlers_of_the_program_get_the_signals(warm: Bench) -> None:
    names = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGUSR2', 'SIGWINCH', 'SIGTSTP', 'SIGCONT']
    run = warm.start('app.py', *names)
    assert line(run) == 'ready'
    for name in names:
        run.send_signal(getattr(signal, name))
        assert line(run) == name
    run.kill()
    run.communicate()


def test_a_stopped_program_stops_its_caller_and_goes_on_with_it(warm: Bench) -> None:
    warm.write('app.py', SHOW + SLEEPER)
    run = warm.start('app.py', 'SIGCONT')
    pid = child(warm, run)
    assert line(run) == 'ready'
    run.send_signal(signal.SIGTSTP)
    warm.wait_for(lambda: state(pid) == 'T' and state(run.pid) == 'T')
    run.send_signal(signal.SIGCONT)
    assert line(run) == 'SIGCONT'
    assert state(run.pid) != 'T'
    run.kill()
    run.communicate()


def test_a_program_that_is_stopped_and_continued_by_its_own_number(warm: Bench) -> None:
    warm.write('app.py', SHOW + SLEEPER)
    run = warm.start('app.py', 'SIGUSR1')
    pid = child(warm, run)
    assert line(run) == 'ready'
    os.kill(pid, signal.SIGSTOP)
    warm.wait_for(lambda: state(pid) == 'T' and state(run.pid) == 'T')
    os.kill(pid, signal.SIGCONT)
    warm.wait_for(lambda: state(pid) != 'T' and state(run.pid) != 'T')
    run.send_signal(signal.SIGUSR1)
    assert line(run) == 'SIGUSR1'
    run.kill()
    run.communicate()


def test_a_limit_of_the_size_of_files(warm: Bench) -> None:
    limit = (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    done = warm.warm('quick.py', preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert (done.returncode, done.stdout.strip().isdigit()) == (0, True)
    assert done.stderr == b'overmind run: as plain python: the call cannot be passed on: File too large\n'


def test_the_scheduling_class_is_the_callers(warm: Bench) -> None:
    warm.write('app.py', 'import os, toylib\nprint(os.sched_getscheduler(0))')
    batch = {'preexec_fn': lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))}
    for more in (batch, {}, batch):
        assert output(warm.warm('app.py', **more)) == output(warm.python('app.py', **more))


def test_a_killed_caller_takes_its_program_down(warm: Bench) -> None:
    warm.write('app.py', SHOW + 'import subprocess\nsubprocess.run(["sleep", "1000"])\n')
    run = warm.start('app.py')
    pid = child(warm, run)
    warm.wait_for(lambda: bool(children(pid)))
    below = children(pid)
    run.kill()
    run.communicate()
    warm.wait_for(lambda: gone(pid) and all(map(gone, below)))
    assert output(warm.warm('quick.py'))[0] == 0


def kill_parents(bench: Bench) -> None:
    for words in bench.listed():
        with contextlib.suppress(ProcessLookupError):  # one that a successor has just replaced
            os.kill(int(words[0]), signal.SIGKILL)


def children(pid: int) -> list[int]:
    return [int(word) for word in pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text().split()]


def test_a_killed_program_looks_killed(warm: Bench) -> None:
    warm.write('app.py', SHOW + SLEEPER)
    run = warm.start('app.py')
    os.kill(child(warm, run), signal.SIGKILL)
    assert run.wait(60) == -signal.SIGKILL


def test_programs_outlive_a_killed_parent(warm: Bench) -> None:
    run = warm.start('app.py', 'SIGUSR1')
    assert line(run) == 'ready'
    kill_parents(warm)
    run.send_signal(signal.SIGUSR1)
    assert line(run) == 'SIGUSR1'
    assert output(warm.warm('quick.py'))[0] == 0
    run.terminate()
    assert run.wait(60) == -signal.SIGTERM


def test_a_killed_keeper_takes_the_program_and_the_caller_down(warm: Bench) -> None:
    warm.write('app.py', SHOW + SLEEPER)
    run = warm.start('app.py')
    pid = child(warm, run)
    keeper = int(pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    assert run.wait(60) == -signal.SIGKILL
    warm.wait_for(lambda: gone(pid))


def test_kills_at_any_moment(warm: Bench) -> None:
    """Callers and parents are killed a little later each time: the next run works, and nothing is left behind."""
    for step in range(25):
        run = warm.start('quick.py')
        try:
            run.wait(0.004 * step)
        except subprocess.TimeoutExpired:
            if step % 2:
                run.kill()
            else:
                kill_parents(warm)
        run.communicate()
        assert output(warm.warm('quick.py'))[0] == 0
    warm.warm('--stop')
    warm.wait_for(lambda: not warm.processes())


def test_twenty_at_once(warm: Bench) -> None:
    runs = [warm.start('quick.py') for _ in range(20)]
    ends = [(run.communicate(timeout=60), run.returncode) for run in runs]
    assert [(error, code) for (_, error), code in ends] == [(b'', 0)] * 20
    assert len({out for (out, _), _ in ends}) == 20


def test_twenty_at_once_start_one_parent(bench: Bench) -> None:
    bench.write('app.py', 'import toylib')
    runs = [bench.start('app.py') for _ in range(20)]
    assert [run.wait(60) for run in runs] == [0] * 20
    for run in runs:
        assert run.communicate()[1] == b''
    bench.wait_for(lambda: [words[3] for words in bench.listed()] == ['2'])
    bench.wait_for(lambda: len(bench.processes()) == 1)


def test_many_runs_leave_the_parent_as_it_was(warm: Bench) -> None:
    parent = next(int(words[0]) for words in warm.listed() if 'quick.py' in words)

    def measure() -> tuple[int, int]:
        rollup = pathlib.Path(f'/proc/{parent}/smaps_rollup').read_text().splitlines()
        anonymous = next(int(row.split()[1]) for row in rollup if row.startswith('Anonymous:'))
        return len(os.listdir(f'/proc/{parent}/fd')), anonymous

    for _ in range(5):
        warm.warm('quick.py')
    before = measure()
    for _ in range(RUNS):
        assert warm.warm('quick.py').stderr == b''
    warm.wait_for(lambda: len(warm.processes()) == 1)
    after = measure()
    assert after[0] == before[0]
    assert after[1] <= before[1] + 128
    assert next(int(words[0]) for words in warm.listed()) == parent


def test_the_process_is_the_callers(bench: Bench) -> None:
    """What a shell may have set before."""
    bench.write(
        'app.py',
        'import os, resource, signal, sys, toylib\n'
        'print(os.umask(0), resource.getrlimit(resource.RLIMIT_NOFILE))\n'
        'print(os.getpriority(0, 0), os.sched_getaffinity(0))\n'
        'print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(0, ()))\n'
        'print(os.listdir("/proc/self/fd"), os.get_inheritable(7), os.read(7, 9), sys.stdin, os.getcwd())',
    )

    def before() -> None:
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        os.nice(3)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        os.dup2(os.open('app.py', os.O_RDONLY), 7)
        os.close(0)

    more = {'preexec_fn': before, 'close_fds': False, 'stdin': None}
    expected = output(bench.python('app.py', **more))
    assert 'None' in expected[1]
    for _ in range(2):
        assert output(bench.warm('app.py', **more)) == expected


def test_a_parent_whose_standing_has_changed_does_not_serve(warm: Bench) -> None:
    """Whatever the kernel keeps of a process: the affinity is what a test can change from outside."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip('one processor only')
    os.sched_setaffinity(warm.parent(), {min(allowed)})
    code, out, error = output(warm.warm('quick.py'))
    assert (code, out.strip().isdigit()) == (0, True)
    assert error == (
        'overmind run: as plain python: groups, capabilities, cgroup, namespaces or processors are others than those '
        'of the warm parent\n'
    )


def test_other_groups_have_another_parent(warm: Bench) -> None:
    if os.geteuid() != 0:
        pytest.skip('only root can change its groups')
    warm.write('app.py', 'import os, toylib\nprint(os.getgroups())')
    for groups in ([], [4321], []):
        more = {'preexec_fn': lambda groups=groups: os.setgroups(groups)}
        assert output(warm.warm('app.py', **more)) == (0, f'{groups}\n', '')


def test_an_early_closed_pipe(bench: Bench) -> None:
    bench.write('app.py', 'import toylib\nfor i in range(100000): print(i)')
    bench.write('late.py', 'import sys, toylib\nprint("x")\nsys.stdin.read()')
    ends = []
    for kind in ('python', 'warm', 'warm'):
        start = getattr(bench, kind)
        reading, writing = os.pipe()
        os.close(reading)
        for program in ('app.py', 'late.py'):
            done = start(program, stdout=writing)
            ends.append((program, done.returncode, done.stderr))
        os.close(writing)
    assert ends[:2] == ends[2:4] == ends[4:]
    assert {code for _, code, _ in ends} == {1, 120}
