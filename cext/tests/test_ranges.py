"""Which pieces write_arena takes, checked against a model in plain Python."""

import ctypes
import itertools
import os
import random

import pytest

from overmind_cext import write_arena

CASES = 10_000
BUFFER = ctypes.create_string_buffer(bytes(range(256)) * 64)
BASE = ctypes.addressof(BUFFER)
LENGTH = 256 * 64
EDGES = [0, 1, 2**31 - 1, 2**31, 2**32, 2**52, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 2**80]


def allowed(nbytes: int, header: bytes, pieces: list[tuple[int, int, int]]) -> bool:
    limit = 2**63
    used = [(0, len(header))] if header else []
    if len(header) > nbytes:
        return False
    for offset, address, size in pieces:
        if not (0 <= offset < limit and 0 <= address < limit and 0 <= size < limit):
            return False
        if offset + size > nbytes:
            return False
        if size and (address == 0 or address + size > limit - 1):
            return False
        if size:
            used.append((offset, offset + size))
    used.sort()
    return all(a[1] <= b[0] for a, b in itertools.pairwise(used))


def number(rng: random.Random, near: int) -> int:
    """Mostly possible; sometimes at an edge of the range or of the machine's integers."""
    kind = rng.randrange(20)
    if kind == 0:
        return rng.choice(EDGES) * rng.choice([1, -1])
    if kind == 1:
        return near + rng.randrange(-2, 3)
    if kind == 2:
        return rng.choice(EDGES) - rng.randrange(near + 1)
    return rng.randrange(near + 1)


def test_random_cases(memfd):
    rng = random.Random(20_260)
    taken = refused = 0
    for case in range(CASES):
        nbytes = rng.choice([1, 7, 64, 4095, 4096, 4097, 9000])
        header = b"h" * max(0, rng.choice([0, 0, 1, 8, nbytes // 4, nbytes, nbytes + 1]))
        if rng.randrange(3):  # laid out without an overlap, then perhaps spoilt
            cuts = sorted(rng.randrange(min(len(header), nbytes), nbytes + 1) for _ in range(rng.randrange(1, 8)))
            pieces = [(a, BASE + rng.randrange(1000), b - a) for a, b in itertools.pairwise(cuts)]
            rng.shuffle(pieces)
            if pieces and rng.randrange(2):
                at, column = rng.randrange(len(pieces)), rng.randrange(3)
                piece = list(pieces[at])
                piece[column] = 0 if column == 1 else number(rng, nbytes)
                pieces[at] = (piece[0], piece[1], piece[2])
        else:
            pieces = [
                (number(rng, nbytes), rng.choice([0, BASE, BASE, BASE, BASE + 5]), number(rng, nbytes // 4))
                for _ in range(rng.randrange(4))
            ]
        fd = memfd(b"\xee" * nbytes)
        mapped = rng.random() < 0.5
        expected = bytearray(b"\xee" * nbytes)
        if allowed(nbytes, header, pieces):
            taken += 1
            write_arena(fd, nbytes, header, pieces, threads=rng.randrange(3), mapped=mapped)
            expected[: len(header)] = header
            for offset, address, size in pieces:
                expected[offset : offset + size] = BUFFER.raw[address - BASE : address - BASE + size] if size else b""
        else:
            refused += 1
            with pytest.raises(ValueError):
                write_arena(fd, nbytes, header, pieces, threads=rng.randrange(3), mapped=mapped)
        assert os.pread(fd, nbytes + 1, 0) == expected, (case, nbytes, header, pieces)
        os.close(fd)
    assert taken > CASES // 5 and refused > CASES // 5, (taken, refused)


@pytest.mark.parametrize(
    "piece",
    [
        (2**63, BASE, 1),
        (2**63 - 1, BASE, 1),
        (2**63 - 1, BASE, 2**63 - 1),
        (2**64, BASE, 1),  # 0, were it cut to 64 bits
        (2**64 - 1, BASE, 2),
        (-1, BASE, 1),
        (-(2**63), BASE, 1),
        (-(2**64), BASE, 1),
        (0, BASE, -1),
        (0, BASE, 2**63),
        (0, BASE, 2**64 + 1),
        (0, BASE, 101),
        (1, BASE, 100),
        (100, BASE, 1),
        (101, BASE, 0),
        (0, 0, 1),
        (0, -1, 1),
        (0, 2**63, 1),
        (0, 2**64 + BASE, 1),
        (0, 2**63 - 1, 1),
        (0, 2**63 - 50, 50),
    ],
    ids=str,
)
@pytest.mark.parametrize("mapped", [True, False])
def test_piece_out_of_range(memfd, piece, mapped):
    fd = memfd(b"x" * 100)
    with pytest.raises(ValueError):
        write_arena(fd, 100, b"", [(50, BASE, 10), piece], mapped=mapped)
    assert os.pread(fd, 200, 0) == b"x" * 100  # not even the good piece is written


@pytest.mark.parametrize(
    ("header", "pieces"),
    [
        (b"12345678", [(7, BASE, 1)]),
        (b"12345678", [(0, BASE, 100)]),
        (b"", [(10, BASE, 10), (19, BASE, 1)]),
        (b"", [(10, BASE, 10), (10, BASE, 10)]),
        (b"", [(50, BASE, 50), (0, BASE, 51)]),
    ],
)
def test_overlaps_are_refused(memfd, header, pieces):
    fd = memfd(b"x" * 100)
    with pytest.raises(ValueError, match="overlap"):
        write_arena(fd, 100, header, pieces)
    assert os.pread(fd, 200, 0) == b"x" * 100


def test_neighbours_and_empty_pieces_do_not_overlap(memfd):
    fd = memfd(100)
    pieces = [(8, BASE, 50), (58, BASE, 42), (30, BASE, 0), (0, 0, 0), (100, BASE, 0)]
    write_arena(fd, 100, b"12345678", pieces)


def test_header_longer_than_the_file(memfd):
    with pytest.raises(ValueError, match="the header has 101 bytes, the file 100"):
        write_arena(memfd(100), 100, b"h" * 101, [])


@pytest.mark.parametrize("nbytes", [0, -1, 2**63, 2**64 + 100])
def test_impossible_size(memfd, nbytes):
    with pytest.raises(ValueError, match="nbytes"):
        write_arena(memfd(100), nbytes, b"", [])
