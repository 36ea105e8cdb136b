"""What is asked of the cache while a library is imported: in the background, and nothing that leaves a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from integration.harness.daemon import Daemon
from integration.harness.runs import environment, run_line
from integration.tests.conftest import every_way

PROGRAM = """
import json, sys, time
import overmind.api
overmind.api.monkey_patch_all()
start = time.monotonic()
import torch
import safetensors.torch
took = time.monotonic() - start
from overmind import cache, settings
store = cache._store(settings.current())
until = time.monotonic() + float(sys.argv[1])
while store._seen is None and time.monotonic() < until:
    time.sleep(0.01)
import transformers.models.auto.modeling_auto  # what is needed beyond that is there by then
facts = {'seconds': took, 'seen': store._seen is not None, 'mount': store.is_mount, 'way': store.way}
print(json.dumps({**facts, 'socket': 'overmind.control.client' in sys.modules}))
"""


def imports(root: Path, wait: float, **variables: str) -> dict[str, Any]:
    return run_line([sys.executable, '-c', PROGRAM, str(wait)], environment(root, **variables), 120)


@every_way
def test_the_daemon_is_asked_which_way_it_offers(daemon: Daemon, way: str) -> None:
    found = imports(daemon.root, 20)
    assert (found['seen'], found['mount'], found['way']) == (True, True, way)
    assert found['socket'] == (way == 'fd')


def test_a_daemon_that_hangs_holds_up_no_import(daemon: Daemon) -> None:
    with daemon.suspended():
        found = imports(daemon.root, 0, OVERMIND_DEADLINE='60')
    assert not found['seen']
    assert found['seconds'] < 40
    assert 'overmind: ' not in found['stderr']


def test_a_folder_becomes_a_cache_when_something_is_loaded_and_not_before(tmp_path: Path) -> None:
    found = imports(tmp_path, 0.5)
    assert not found['seen']
    assert list(tmp_path.iterdir()) == []
