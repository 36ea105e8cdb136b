"""Small programs that show how Python treats a program. Each one is run under ``python`` and ``overmind run``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Program:
    """Files by name, the command line, and what else the process gets. ``app.py`` is the first file."""

    text: str
    words: tuple[str, ...] = ('app.py',)
    files: dict[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    env: dict[str, str] = field(default_factory=dict)


PROGRAMS: dict[str, Program] = {
    'arguments': Program(
        'import sys, toylib\nprint(sys.argv, sys.orig_argv[1:], sys.executable)',
        ('app.py', '', '-x', '--', 'ü', 'a b', '-m', '*'),
    ),
    'exit number': Program('import sys\nsys.exit(3)'),
    'exit text': Program('import sys\nsys.exit("no such thing")'),
    'exit object': Program('import sys\nsys.exit([1, 2])'),
    'exit negative': Program('import sys\nsys.exit(-1)'),
    'exit large': Program('import sys\nsys.exit(263)'),
    'exit without running handlers': Program('import os, atexit\natexit.register(print, "never")\nos._exit(9)'),
    'exit in a thread': Program(
        'import sys, threading\nt = threading.Thread(target=sys.exit, args=(4,))\nt.start()\nt.join()\nprint("on")'
    ),
    'exit in atexit': Program('import atexit, sys\natexit.register(sys.exit, 5)\natexit.register(print, "first")'),
    'exit in finally': Program('import sys\ntry:\n    1 / 0\nfinally:\n    sys.exit(6)'),
    'exit in a destructor': Program(
        'import sys\nclass A:\n    def __del__(self): sys.exit(7)\na = A()\ndel a\nprint("on")'
    ),
    'exit in a signal handler': Program(
        'import os, signal, sys\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(8))\n'
        'os.kill(os.getpid(), signal.SIGTERM)\nprint("never")'
    ),
    'atexit in order': Program(
        'import atexit\nfor i in range(3): atexit.register(print, i)\natexit.register(lambda: 1 / 0)\nprint("end")'
    ),
    'uncaught exception': Program('import toylib\ndef f():\n    toylib.double()\nf()'),
    'chained exception': Program('try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError("k") from e'),
    'exception in an own module': Program('import own', files={'own.py': 'def f(): raise OSError(2, "x")\nf()\n'}),
    'exception group and notes': Program('e = ValueError(1)\ne.__notes__ = ["note"]\nraise e'),
    'syntax error': Program('print("never")\nx = = 1\n'),
    'tabs and encoding': Program('# coding: latin-1\nif 1:\n\tprint("tab", __doc__)\n'),
    'missing module': Program('import no_such_module_at_all'),
    'raised keyboard interrupt': Program('import atexit\natexit.register(print, "bye")\nraise KeyboardInterrupt("x")'),
    'broken excepthook': Program('import sys\nsys.excepthook = lambda *a: 1 / 0\nraise ValueError(1)'),
    'own excepthook': Program(
        'import sys, traceback\n'
        'sys.excepthook = lambda t, v, tb: print(t, v, len(traceback.extract_tb(tb)), tb.tb_frame.f_code.co_name)\n'
        'raise ValueError(1)'
    ),
    'unraisable and thread exceptions': Program(
        'import threading\nclass A:\n    def __del__(self): raise ValueError("del")\nA()\n'
        't = threading.Thread(target=lambda: 1 / 0, name="t")\nt.start()\nt.join()'
    ),
    'frames': Program(
        'import faulthandler, inspect, sys, traceback, toylib\ntraceback.print_stack()\nprint(len(inspect.stack()))\n'
        'faulthandler.dump_traceback(all_threads=False)\nsys._getframe(1)'
    ),
    'killed by itself': Program('import os, signal\nprint("on", flush=True)\nos.kill(os.getpid(), signal.SIGKILL)'),
    'terminated': Program('import os, signal\nprint("lost")\nos.kill(os.getpid(), signal.SIGTERM)'),
    'crash with faulthandler': Program(
        'import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)', env={'LC_ALL': 'C'}
    ),
    'abort': Program('import os\nos.abort()'),
    'standard input': Program(
        'import sys\nprint(sys.stdin.readline(), end="")\nprint(input("? "))\nprint(ascii(sys.stdin.buffer.read()))',
        stdin=b'one\r\ntwo\n\xff\x00\r\nrest',
    ),
    'end of input': Program('input()', stdin=b''),
    'streams': Program(
        'import sys, toylib\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n'
        '    print(s, s.buffer, s.buffer.raw, s.line_buffering, s.write_through,\n'
        '    s.newlines, s.isatty(), s.seekable())\n'
        'print(sys.stdout is sys.__stdout__, sys.stdin.fileno())',
        stdin=b'x',
    ),
    'buffers': Program(
        'import os, sys\nprint("a")\nos.write(1, b"b\\n")\nsys.stderr.write("c")\nos.write(2, b"d\\n")\nprint("e")'
    ),
    'unbuffered': Program(
        'import os, sys\nprint("a", sys.stdout.write_through, sys.stdout.buffer)\nos.write(1, b"b\\n")\nprint("c")',
        ('-u', 'app.py'),
    ),
    'locale C': Program(
        'import locale, sys\nprint(sys.stdout.encoding, sys.stdout.errors, sys.stdin.errors, sys.flags.utf8_mode,\n'
        'locale.setlocale(locale.LC_CTYPE), sys.getfilesystemencoding())\nprint(ascii(sys.argv))',
        ('app.py', 'ü'),
        env={'LC_ALL': 'C', 'PYTHONCOERCECLOCALE': '0', 'PYTHONUTF8': '0'},
    ),
    'encoding of streams': Program(
        'import sys\nprint("ü", sys.stdout.encoding, sys.stdout.errors)', env={'PYTHONIOENCODING': 'latin-1:replace'}
    ),
    'own modules in PYTHONPATH': Program(
        'import sys, own, toylib\nprint(own.here, [p for p in sys.path if "lib" in p][:2], sys.path[0])',
        files={'lib/own.py': 'here = __file__\n'},
        env={'PYTHONPATH+': 'lib'},
    ),
    'flags': Program(
        'import sys, warnings, toylib\nprint(sys.flags, sys._xoptions, sys.warnoptions, __debug__)\n'
        'assert False\nprint(warnings.filters[:4])',
        ('-OO', '-b', '-q', '-X', 'utf8', '-Xdev', '-W', 'ignore::FutureWarning', 'app.py'),
    ),
    'warnings as errors': Program('import warnings\nwarnings.warn("w")', ('-W', 'error', 'app.py')),
    'warnings': Program(
        'import warnings, toylib\nfor i in range(2):\n    warnings.warn("w")\nwarnings.warn("d", DeprecationWarning)\n'
        'warnings.warn("f", FutureWarning, stacklevel=2)\nimport own',
        files={'own.py': 'import warnings\nwarnings.warn("from own", DeprecationWarning, stacklevel=2)\n'},
    ),
    'resource warnings': Program('open("app.py")\nprint("end")', ('-X', 'dev', 'app.py')),
    'package as a module': Program(
        '',
        ('-m', 'pkg', 'x'),
        {
            'pkg/__init__.py': 'print("init", __name__)\n',
            'pkg/__main__.py': 'import sys, toylib\nfrom . import near\nprint(sys.argv[1:], near.value)\n',
            'pkg/near.py': 'value = __package__\n',
        },
    ),
    'module of a package': Program(
        '',
        ('-m', 'pkg.sub', '--y'),
        {
            'pkg/__init__.py': '',
            'pkg/sub.py': 'import sys\nfrom . import near\nprint(sys.argv, __package__, sys.path[0])\nraise OSError\n',
            'pkg/near.py': '',
        },
    ),
    'missing module to run': Program('', ('-m', 'no_such_module_at_all')),
    'module of the library': Program('', ('-m', 'json.tool'), stdin=b'{"a": [1]}'),
    'folder with __main__': Program(
        '',
        ('folder', 'x'),
        {'folder/__main__.py': 'import sys, own\nprint(sys.argv, sys.path[0])', 'folder/own.py': ''},
    ),
    'names in __main__': Program(
        'import sys, toylib\nprint(sorted(n for n in dir()), __name__, __file__, __spec__, __package__, __doc__,\n'
        '__loader__.__class__, __builtins__, getattr(sys.modules["__main__"], "__cached__", 0), __annotations__)\n'
        'print(sys.modules["__main__"].__dict__ is globals(), "sitecustomize" in sys.modules)'
    ),
    'pickle of __main__': Program(
        'import pickle\nclass A:\n    def __init__(self): self.x = 1\n'
        'data = pickle.dumps([A(), A])\nprint(b"__main__" in data, pickle.loads(data)[0].x, pickle.loads(data)[1])'
    ),
    'hash seed': Program('print(hash("a"), set("abcdefgh"))', env={'PYTHONHASHSEED': '7'}),
    'no hash seed': Program('import sys\nprint(sys.flags.hash_randomization, hash(1.5))', env={'PYTHONHASHSEED': '0'}),
    'trace': Program(
        'import sys, toylib\nseen = []\n'
        'sys.settrace(lambda f, e, a: seen.append((f.f_code.co_name, e)))\n'
        'toylib.double(1)\nsys.settrace(None)\nprint(seen)'
    ),
    'coverage hooks': Program('def f(x):\n    return x\nf(1)\n', ('-m', 'trace', '--listfuncs', 'app.py')),
    'debugger': Program(
        'def f(x):\n    y = x + 1\n    return y\nf(1)\n',
        ('-m', 'pdb', 'app.py'),
        stdin=b'break 2\ncontinue\nwhere\np x\nstep\np y\ncontinue\nquit\n',
    ),
    'breakpoint': Program('x = 5\nbreakpoint()\nprint("after")', stdin=b'p x\nw\nc\n'),
    'profiler': Program('', ('-m', 'cProfile', '-h')),
    'spawned processes': Program(
        'import multiprocessing as m\ndef f(x): return x * x\n'
        'if __name__ == "__main__":\n    m.set_start_method("spawn")\n'
        '    with m.Pool(2) as pool: print(pool.map(f, [1, 2, 3]))\n',
    ),
    'forked processes': Program(
        'import multiprocessing as m, os\ndef f(q): q.put(os.getpid() != parent)\n'
        'parent = os.getpid()\nif __name__ == "__main__":\n    c = m.get_context("fork")\n    q = c.SimpleQueue()\n'
        '    p = c.Process(target=f, args=(q,))\n    p.start()\n    print(q.get())\n    p.join()\n    print(p.exitcode)'
    ),
    'processes of a pool': Program(
        'from concurrent.futures import ProcessPoolExecutor as P, ThreadPoolExecutor as T\n'
        'if __name__ == "__main__":\n    for kind in (P, T):\n        with kind(2) as pool:\n'
        '            print(sum(pool.map(abs, [-1, -2])))'
    ),
    'forked by hand': Program(
        'import os, sys, atexit\natexit.register(lambda: print("at exit", flush=True))\n'
        'if os.fork() == 0:\n    sys.exit(3)\n'
        'print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)'
    ),
    'threads': Program(
        'import threading, time\ndef late():\n    e.wait()\n    print("late")\ne = threading.Event()\n'
        'threading.Thread(target=late).start()\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n'
        'print(threading.current_thread() is threading.main_thread(), threading.active_count())\ne.set()'
    ),
    'asyncio': Program(
        'import asyncio, signal\nasync def f():\n'
        '    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print, "s")\n'
        '    p = await asyncio.create_subprocess_exec("echo", "x", stdout=-1)\n'
        '    print(await p.communicate(), p.returncode)\n'
        '    signal.raise_signal(signal.SIGUSR1)\n    await asyncio.sleep(0)\n'
        'asyncio.run(f())'
    ),
    'subprocess': Program(
        'import subprocess, sys\n'
        'print(subprocess.run([sys.executable, "-c", "import sys; print(sys.flags.optimize)"],\n'
        'capture_output=True).stdout)\nprint(subprocess.call("exit 3", shell=True))'
    ),
    'environment': Program(
        'import os, subprocess, toylib\nhide = ("_", "SHLVL", "LC_CTYPE")\n'
        'print([(k, v) for k, v in os.environ.items() if k not in hide])\n'
        'print(sorted(l for l in subprocess.run("env", capture_output=True, text=True).stdout.split("\\n")\n'
        '             if l.split("=")[0] not in hide))',
        env={'COLUMNS': '33', 'ODD': 'a=b\nc'},
    ),
    'process': Program(
        'import os, resource, signal, toylib\n'
        'print(os.getcwd(), os.umask(0), os.getpriority(0, 0), os.sched_getaffinity(0))\n'
        'print([resource.getrlimit(i) for i in range(16)], os.getgroups(), signal.pthread_sigmask(0, ()))\n'
        'print({s: signal.getsignal(s) for s in signal.valid_signals() if signal.getsignal(s) != signal.SIG_DFL})\n'
        'print(sorted(os.listdir("/proc/self/fd")), open("/proc/self/comm").read())\n'
        'print(open("/proc/self/cmdline").read().split("\\0"), "XDG_STATE_HOME" in open("/proc/self/environ").read())',
        ('-B', 'app.py', '--rate', '1', ''),
    ),
    'logging': Program(
        'import logging, toylib\n'
        'logging.warning("w")\nlogging.basicConfig(level="INFO", force=True)\nlogging.info("i")\n'
        'r = logging.makeLogRecord({})\nprint(0 <= r.relativeCreated < 60000)'
    ),
    'builtins of site': Program('print(exit, quit, copyright.__class__, credits.__class__)\nexit(2)'),
    'usage error': Program(
        'import argparse\np = argparse.ArgumentParser()\np.add_argument("-n", type=int)\np.parse_args()',
        ('app.py', '-n', 'x'),
    ),
    'garbage': Program(
        'import gc, weakref\nclass A: pass\na = A()\na.me = a\nr = weakref.ref(a, lambda _: print("gone"))\ndel a\n'
        'gc.collect()\nprint(r(), gc.isenabled(), gc.get_threshold())'
    ),
    'destructor at the end': Program(
        'class A:\n    def __del__(self): print("gone")\na = A()\nA.me = A()\nprint("end")'
    ),
}
