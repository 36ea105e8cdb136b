"""How weights are cut into the buffers, on a device that copies as late as it may."""

from __future__ import annotations

import pytest
from fake_layer import FakeLayer, pairs, same

from overmind.gpu.pool import Pool

NBYTES = 256


@pytest.mark.parametrize('count', [1, 2, 3])
@pytest.mark.parametrize(
    'sizes',
    [
        [],
        [1],
        [NBYTES - 1],
        [NBYTES],
        [NBYTES + 1],
        [10 * NBYTES],
        [5, 1000, 64, 63, 65, 1, 2 * NBYTES],
        [1] * 100,
        [*range(1, 90)],
    ],
    ids=str,
)
def test_bytes_arrive(sizes: list[int], count: int) -> None:
    layer, wanted = FakeLayer(), pairs(*sizes)
    pool = Pool(NBYTES, count)
    for _ in range(2):
        pool.copy(layer, wanted)
        assert same(wanted)
        for target, _source in wanted:
            target.zero_()
    assert [len(b) for b in layer.buffers] == [NBYTES] * count


def test_small_ones_share_a_buffer() -> None:
    layer = FakeLayer()
    Pool(NBYTES, 2).copy(layer, pairs(1, 1, 1, 1))
    assert (layer.sizes, layer.waits) == ([1, 1, 1, 1], 0)


def test_buffers_are_waited_for_one_by_one() -> None:
    layer = FakeLayer()
    Pool(NBYTES, 2).copy(layer, pairs(10 * NBYTES))
    assert layer.sizes == [NBYTES] * 10
    assert layer.waits == 8  # the first two buffers were free
