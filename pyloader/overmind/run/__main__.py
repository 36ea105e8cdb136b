"""``python -m overmind.run ...`` is ``overmind run ...``."""

from __future__ import annotations

import sys

from overmind.run.command import main

sys.argv.insert(1, 'run')
main()
