"""Tensors over parts of arenas: which rows get one, what is in it, and how long the arena lives."""

import gc
import struct
import threading

import pytest
from dlpack import Consumed, name_of, peek

from overmind_cext import check_tables, live_mappings, map_arena, released_mappings, tensors

F16, I64, NONE = (2, 16), (0, 64), None
CPU, GPU = 0, 1
STORAGE, TENSOR = struct.Struct("<QQII"), struct.Struct("<QIIHBBI")
MOST = (1 << 32) - 1


class Tensor:
    """In place of torch's: it keeps the capsule that it was made of, and takes a class and an attribute."""

    requires_grad = False

    def __init__(self, capsule):
        self.capsule = capsule


class Parameter(Tensor):
    pass


def tensor(storage, dims=0, ndim=1, dtype=0, offset=0, flags=0):
    return (offset, dims, storage, dtype, ndim, flags, 0)


def pack(storages, rows, dims):
    parts = (b"".join(STORAGE.pack(*s) for s in storages), b"".join(TENSOR.pack(*t) for t in rows))
    return (*parts, struct.pack(f"<{len(dims)}q", *dims))


def views(arenas, storages, rows, dims, dtypes, device):
    """The capsules of the tensors; None where there is none."""
    made, rest = tensors(arenas, pack(storages, rows, dims), dtypes, device, Tensor, Parameter)
    assert [row for row, _ in rest] == [row for row, one in enumerate(made) if one is None]
    return [one and one.capsule for one in made]


def new_arena(memfd):
    """A capsule over 4096 bytes, each the low byte of its place."""
    content = bytes(range(256)) * 16
    return map_arena(memfd(content), len(content))


def test_a_tensor_that_is_all_of_its_storage(memfd):
    arena = new_arena(memfd)
    dims = [3, 2, 2, 1, 5, 1]
    weight, bias = views([arena], [(64, 12, 0, CPU), (128, 40, 0, CPU)], [tensor(0, 0, 2), tensor(1, 4, 1, 1)], dims, [F16, I64], CPU)
    shown = peek(weight)
    assert (shown.device_type, shown.device_id, shown.ndim, shown.byte_offset) == (1, 0, 2, 0)
    assert (shown.code, shown.bits, shown.lanes) == (2, 16, 1)
    assert (shown.shape[:2], shown.strides[:2]) == ([3, 2], [2, 1])
    whole = peek(arena).data
    assert (peek(weight).data - whole, peek(bias).data - whole) == (64, 128)
    taken = Consumed(bias)
    assert taken.read(nbytes=40) == bytes(range(128, 168))
    taken.write(0, b"x")  # private
    taken.release()


def test_rows_without_a_tensor_of_their_own(memfd):
    arena = new_arena(memfd)
    dims = [3, 1, 2, 1, 3, 2, 4, 3, 1, 4, 0, 1]
    storages = [(0, 6, 0, CPU), (64, 8, 0, CPU), (128, 6, 0, GPU), (192, 0, 0, CPU), (256, 24, 0, CPU), (320, 6, 0, CPU)]
    rows = [
        tensor(0),  # all of it
        tensor(0),  # a second one
        tensor(1),  # not all of it
        tensor(1, offset=1),
        tensor(2),  # on a device
        tensor(3, 10),  # empty
        tensor(4, 6, 2),  # columns first, and all of it
        tensor(5, dtype=1),  # no such dtype in DLPack
    ]
    found = views([arena], storages, rows, dims, [F16, NONE], CPU)
    assert [view is not None for view in found] == [True, False, False, False, False, False, True, False]
    assert peek(found[6]).strides[:2] == [1, 4]


def test_a_later_row_that_is_all_of_a_storage_gets_it(memfd):
    arena = new_arena(memfd)
    first, second = views([arena], [(0, 8, 0, CPU)], [tensor(0), tensor(0, 2)], [2, 1, 4, 1], [F16], CPU)
    assert first is None
    assert peek(second).shape[0] == 4


def test_a_number_without_sizes(memfd):
    arena = new_arena(memfd)
    (view,) = views([arena], [(8, 8, 0, CPU)], [tensor(0, ndim=0)], [], [I64], CPU)
    assert peek(view).ndim == 0
    assert peek(view).data == peek(arena).data + 8


def test_overlapping_strides_take_less_than_they_have_elements(memfd):
    arena = new_arena(memfd)
    (expanded,) = views([arena], [(0, 6, 0, CPU)], [tensor(0, ndim=2)], [5, 3, 0, 1], [F16], CPU)
    assert peek(expanded).strides[:2] == [0, 1]


def test_more_elements_than_can_be_counted(memfd):
    """Without strides they take no room."""
    dims = [1 << 40, 1 << 40, 0, 0]
    assert views([new_arena(memfd)], [(0, 2, 0, CPU)], [tensor(0, ndim=2)], dims, [F16], CPU) == [None]


@pytest.mark.parametrize(
    "dims",
    [[1 << 62, 1 << 62], [(1 << 63) - 1, 1], [4, 1 << 61], [0, 1], [4, 1], [2, 1]],
    ids=str,
)
def test_sizes_that_cannot_be(memfd, dims):
    arena = new_arena(memfd)
    assert views([arena], [(0, 6, 0, CPU)], [tensor(0)], dims, [F16], CPU) == [None]


def test_classes_and_gradients(memfd):
    arena = new_arena(memfd)
    storages = [(64 * i, 6, 0, CPU) for i in range(4)]
    rows = [tensor(i, flags=i) for i in range(4)]
    made, rest = tensors([arena], pack(storages, rows, [3, 1]), [F16], CPU, Tensor, Parameter)
    assert [type(one) for one in made] == [Tensor, Tensor, Parameter, Parameter]
    assert [one.requires_grad for one in made] == [False, True, False, True]
    assert rest == []


def test_who_has_a_storage(memfd):
    arena = new_arena(memfd)
    storages = [(0, 6, 0, CPU), (64, 6, 0, CPU), (128, 6, 0, CPU)]
    rows = [tensor(1, 2), tensor(0), tensor(1), tensor(1), tensor(0, 2), tensor(2, 2)]
    made, rest = tensors([arena], pack(storages, rows, [3, 1, 2, 1]), [F16], CPU, Tensor, Parameter)
    assert rest == [(0, 2), (3, 2), (4, 1), (5, -1)]
    assert [made[1] is None, made[2] is None] == [False, False]


@pytest.mark.parametrize("fails", ["make", "class", "gradient"])
def test_what_fails_in_between_leaves_nothing(memfd, fails):
    class Refusing(Tensor):
        if fails == "gradient":
            requires_grad = property(lambda self: False)

        def __init__(self, capsule):
            super().__init__(capsule)
            if fails == "make":
                raise KeyError("no")

    arena = new_arena(memfd)
    storages = [(0, 6, 0, CPU), (64, 6, 0, CPU)]
    rows = [tensor(0), tensor(1, flags={"make": 0, "class": 2, "gradient": 1}[fails])]
    kind = int if fails == "class" else Parameter
    with pytest.raises((KeyError, TypeError, AttributeError)):
        tensors([arena], pack(storages, rows, [3, 1]), [F16], CPU, Refusing, kind)
    del arena
    gc.collect()
    assert live_mappings() == 0


def test_a_consumer_that_fails_when_it_has_the_memory(memfd):
    """As torch does: it has called the deleter, and the capsule is called as before."""

    def consume(capsule):
        taken = Consumed(capsule, b"dltensor")
        taken.release()
        raise RuntimeError("too late")

    before = released_mappings()
    arena = new_arena(memfd)
    with pytest.raises(RuntimeError, match="too late"):
        tensors([arena], pack([(0, 6, 0, CPU)], [tensor(0)], [3, 1]), [F16], CPU, consume, Parameter)
    assert (live_mappings(), released_mappings()) == (1, before)
    assert Consumed(arena).release() is None
    assert (live_mappings(), released_mappings()) == (0, before + 1)


def test_arenas_stay_while_tensors_are_made(memfd):
    arena = new_arena(memfd)
    seen = []

    def consume(capsule):
        if not seen:
            Consumed(arena).release()
        seen.append(peek(capsule))
        assert live_mappings() == 1
        return Tensor(capsule)

    made, _ = tensors([arena], pack([(0, 6, 0, CPU), (64, 6, 0, CPU)], [tensor(0), tensor(1)], [3, 1]), [F16], CPU, consume, Parameter)
    assert seen[1].data - seen[0].data == 64
    del made
    gc.collect()
    assert live_mappings() == 0


def test_the_list_can_be_seen_while_it_is_filled(memfd):
    arena = new_arena(memfd)
    found = []

    def consume(capsule):
        found.extend(len(o) for o in gc.get_objects() if type(o) is list and len(o) == 3 and list(o) == [None] * 3)
        return Tensor(capsule)

    tensors([arena], pack([(0, 6, 0, CPU)], [tensor(0, 2)] * 2 + [tensor(0)], [3, 1, 1, 1]), [F16], CPU, consume, Parameter)
    assert found


@pytest.mark.parametrize(
    ("storages", "rows", "dims", "said"),
    [
        ([(0, 6, 0, CPU)], [tensor(1)], [3, 1], "tensor 0 refers"),
        ([(0, 6, 0, CPU)], [tensor(0), tensor(0, dtype=1)], [3, 1], "tensor 1 refers"),
        ([(0, 6, 0, CPU)], [tensor(0, 1)], [3, 1], "tensor 0 refers"),
        ([(0, 6, 0, CPU)], [tensor(0, MOST)], [3, 1], "tensor 0 refers"),
        ([(0, 6, 0, CPU)], [tensor(0, ndim=255)], [3, 1], "tensor 0 refers"),
        ([(0, 6, 1, CPU)], [tensor(0)], [3, 1], "storage 0 reaches past"),
        ([(0, 6, MOST, CPU)], [], [], "storage 0 reaches past"),
        ([(4092, 6, 0, CPU)], [tensor(0)], [3, 1], "storage 0 reaches past"),
        ([(0, 6, 0, CPU), ((1 << 64) - 1, 6, 0, CPU)], [tensor(0)], [3, 1], "storage 1 reaches past"),
        ([(6, (1 << 64) - 1, 0, CPU)], [tensor(0)], [3, 1], "storage 0 reaches past"),
        ([(0, 6, 0, CPU)], [tensor(0)], [3, -1], "size or stride 1 is negative"),
    ],
)
def test_rows_that_lead_outside(memfd, storages, rows, dims, said):
    with pytest.raises(ValueError, match=said):
        check_tables(pack(storages, rows, dims), [4096], 1, 1)
    with pytest.raises(ValueError, match=said):
        views([new_arena(memfd)], storages, rows, dims, [F16], CPU)


def test_devices_that_are_not_there():
    tables = pack([(0, 6, 0, 0), (0, 6, 0, 1)], [], [])
    check_tables(tables, [6], 0, 2)
    with pytest.raises(ValueError, match="storage 1 is on a device"):
        check_tables(tables, [6], 0, 1)


def test_what_is_empty_leads_nowhere():
    check_tables(pack([(0, 0, 7, 0)], [], []), [], 0, 1)
    check_tables((b"", b"", b""), [], 0, 0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({0: [object()]}, ValueError),
        ({0: None}, TypeError),
        ({1: (b"", b"")}, TypeError),
        ({1: [b"", b"", b""]}, TypeError),
        ({1: (b"", b"", "")}, TypeError),
        ({1: (b"x", b"", b"")}, ValueError),
        ({1: (b"", bytes(25), b"")}, ValueError),
        ({1: (b"", b"", bytes(7))}, ValueError),
        ({2: [(256, 16)]}, ValueError),
        ({2: [(2, 4)]}, ValueError),
        ({2: [(2, 0)]}, ValueError),
        ({2: [2]}, TypeError),
        ({2: [(2,)]}, TypeError),
        ({2: None}, TypeError),
        ({3: "0"}, TypeError),
        ({4: None}, TypeError),
    ],
)
def test_wrong_arguments(memfd, change, error):
    given = [[new_arena(memfd)], pack([(0, 6, 0, CPU)], [tensor(0)], [3, 1]), [F16], CPU, Tensor, Parameter]
    for at, value in change.items():
        given[at] = value
    with pytest.raises(error):
        tensors(*given)


@pytest.mark.parametrize(
    "given",
    [(None, [], 0, 0), *(((b"", b"", b""), *rest) for rest in ((None, 0, 0), ([-1], 0, 0), ([], -1, 0), ([], 0, -1)))],
)
def test_wrong_tables(given):
    with pytest.raises((TypeError, OverflowError, ValueError)):
        check_tables(*given)


def test_an_arena_that_was_consumed_is_none(memfd):
    arena = new_arena(memfd)
    taken = Consumed(arena)
    with pytest.raises(ValueError):
        views([arena], [(0, 6, 0, CPU)], [tensor(0)], [3, 1], [F16], CPU)
    taken.release()


def test_a_part_is_no_arena(memfd):
    arena = new_arena(memfd)
    (view,) = views([arena], [(0, 6, 0, CPU)], [tensor(0)], [3, 1], [F16], CPU)
    with pytest.raises(ValueError, match="not a capsule of map_arena"):
        views([view], [(0, 6, 0, CPU)], [tensor(0)], [3, 1], [F16], CPU)


@pytest.mark.parametrize("last", ["whole", "consumed", "unconsumed"])
def test_the_last_one_releases_the_arena(memfd, last):
    before = released_mappings()
    fd = memfd(b"abcdefgh" * 16)
    arena = map_arena(fd, 128)
    one, other = views([arena], [(0, 8, 0, CPU), (64, 8, 0, CPU)], [tensor(0), tensor(1)], [4, 1], [F16], CPU)
    taken = {"whole": Consumed(arena), "consumed": Consumed(one)}
    assert name_of(one) == b"used_dltensor"
    taken["consumed"].write(0, b"ABCD")
    for name in sorted(("whole", "consumed", "unconsumed"), key=lambda name: name == last):
        assert (live_mappings(), released_mappings()) == (1, before)
        if name == "unconsumed":
            del other
            gc.collect()
        else:
            assert taken[name].read(4, 4) == b"efgh"
            taken[name].release()
    assert (live_mappings(), released_mappings()) == (0, before + 1)


def test_many_are_released_by_threads(memfd):
    before, count = released_mappings(), 400
    arena = map_arena(memfd(64 * count), 64 * count)
    storages = [(64 * i, 8, 0, CPU) for i in range(count)]
    taken = [Consumed(v) for v in views([arena], storages, [tensor(i) for i in range(count)], [4, 1], [F16], CPU)]
    Consumed(arena).release()
    threads = [
        threading.Thread(target=lambda part: [one.release() for one in part], args=(taken[i::4],)) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (live_mappings(), released_mappings()) == (0, before + 1)
