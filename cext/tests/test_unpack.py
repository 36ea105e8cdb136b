"""Tables of FlatBuffers as the library writes them, in any layout, and bytes that are none."""

import random

import flatbuffers
import pytest

from overmind_cext import unpack

EVERY = "IQqdsS*[SQ]-{8}"


class Writer:
    """A root table with a field for each argument, each made by a function of the builder."""

    def __init__(self):
        self.b = flatbuffers.Builder(64)

    def string(self, text):
        return self.b.CreateString(text)

    def offsets(self, places):
        self.b.StartVector(4, len(places), 4)
        for at in reversed(places):
            self.b.PrependUOffsetTRelative(at)
        return self.b.EndVector()

    def numbers(self, values):
        self.b.StartVector(8, len(values), 8)
        for value in reversed(values):
            self.b.PrependInt64(value)
        return self.b.EndVector()

    def table(self, *fields, order=None):
        """Fields are (kind, value), or None for one that is left out; order is that in which they are written."""
        self.b.StartObject(len(fields))
        for i in order or range(len(fields)):
            if fields[i] is None:
                continue
            kind, value = fields[i]
            if kind == "offset":
                self.b.PrependUOffsetTRelativeSlot(i, value, 0)
            else:
                getattr(self.b, f"Prepend{kind}Slot")(i, value, 0)
        return self.b.EndObject()

    def finish(self, root):
        self.b.Finish(root)
        return bytes(self.b.Output())


def example():
    w = Writer()
    inner = [w.table(("offset", w.string(name)), ("Uint64", size)) for name, size in (("a", 1), ("", 2**64 - 1))]
    fields = [
        ("Uint32", 2**32 - 1), ("Uint64", 2**64 - 1), ("Int64", -(2**63)), ("Float64", 1.5),
        ("offset", w.string("text")), ("offset", w.string("ü")),
        ("offset", w.offsets([w.string("x"), w.string("")])), ("offset", w.offsets(inner)),
        ("Uint32", 7), ("offset", w.numbers([1, -1])),
    ]  # fmt: skip
    return w.finish(w.table(*fields))


VALUES = (2**32 - 1, 2**64 - 1, -(2**63), 1.5, "text", "ü", ["x", ""], [("a", 1), ("", 2**64 - 1)])


def test_every_kind_of_field():
    assert unpack(example(), EVERY, 16) == (*VALUES, (1).to_bytes(8, "little") + b"\xff" * 8)
    assert unpack(example(), "", 16) == ()
    assert unpack(example(), "-Q", 16) == (2**64 - 1,)


def test_fields_that_are_not_there():
    w = Writer()
    data = w.finish(w.table(None, None, ("Uint32", 3)))
    assert unpack(data, "QsI", 1) == (0, "", 3)
    assert unpack(data, "IQIIQqds*[S]{8}", 1) == (0, 0, 3, 0, 0, 0, 0.0, "", [], [], b"")  # of a newer schema
    with pytest.raises(ValueError, match="lacks a field"):
        unpack(data, "S", 1)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 1, 0)])
def test_pairs_of_strings_in_any_layout(order, more):
    """Where the fields of a table are is for whoever writes it."""
    pairs = [("name", "value"), ("", "ü"), ("x" * 300, "")]
    w = Writer()
    tables = []
    for pair in pairs:
        one, two = (("offset", w.string(text)) for text in pair)
        tables.append(w.table(one, two, ("Uint32", 7) if more else None, order=order))
    data = w.finish(w.table(("offset", w.offsets(tables))))
    assert unpack(data, "[SS]", 16) == (pairs,)
    for cut in range(len(data)):
        try:
            assert unpack(data[:cut], "[SS]", 16) == (pairs,)  # without the padding at the end
        except ValueError:
            continue
        assert cut > len(data) - 8


def test_pairs_that_lack_a_string():
    w = Writer()
    table = w.table(("offset", w.string("name")), None)
    data = w.finish(w.table(("offset", w.offsets([table]))))
    assert unpack(data, "[Ss]", 16) == ([("name", "")],)
    with pytest.raises(ValueError, match="lacks a field"):
        unpack(data, "[SS]", 16)


def test_one_long_string_again_and_again():
    w = Writer()
    long = w.string("x" * 1000)
    data = w.finish(w.table(("offset", w.offsets([long] * 40))))
    assert unpack(data, "*", 40) == (["x" * 1000] * 40,)
    with pytest.raises(ValueError, match="too long"):
        unpack(data, "*", 16)


def test_strings_that_are_no_utf_8():
    data = example().replace(b"text", b"te\xfft")
    with pytest.raises(UnicodeDecodeError):
        unpack(data, EVERY, 16)


def test_tables_before_the_beginning_and_behind_the_end():
    data = bytearray(example())
    root = int.from_bytes(data[:4], "little")
    for back, said in ((root + 1, "before the beginning"), (-len(data), "outside"), (2**31 - 1, "before")):
        data[root : root + 4] = back.to_bytes(4, "little", signed=True)
        with pytest.raises(ValueError, match=said):
            unpack(bytes(data), "I", 16)
    for root in (len(data) - 3, len(data), 2**32 - 1):
        data[:4] = root.to_bytes(4, "little")
        with pytest.raises(ValueError, match="outside"):
            unpack(bytes(data), "I", 16)


def test_counts_that_are_too_large():
    w = Writer()
    data = bytearray(w.finish(w.table(("offset", w.numbers([1, 2])))))
    at = data.index((2).to_bytes(4, "little") + (1).to_bytes(8, "little"))
    for count in (3, 2**29, 2**32 - 1):
        data[at : at + 4] = count.to_bytes(4, "little")
        for layout in ("{8}", "*", "[I]", "s") if count > 3 else ("{8}",):
            with pytest.raises(ValueError, match=r"past the end|outside|too long"):
                unpack(bytes(data), layout, 16)


def test_any_damage_is_refused_or_read():
    good, r = example(), random.Random(1)
    for _ in range(20000):
        data = bytearray(good)
        for _ in range(r.randint(1, 4)):
            at = r.randrange(len(data))
            if r.random() < 0.5:
                data[at] = r.randrange(256)
            else:
                edge = r.choice([0, 1, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1])
                data[at & ~3 : (at & ~3) + 4] = edge.to_bytes(4, "little")
        try:
            values = unpack(bytes(data[: r.randint(0, len(data))]) if r.random() < 0.2 else bytes(data), EVERY, 16)
        except ValueError:
            continue
        assert len(values) == 9


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((None, "I", 16), TypeError),
        (("text", "I", 16), TypeError),
        ((bytearray(8), "I", 16), TypeError),
        ((b"", None, 16), TypeError),
        ((b"", "I", "x"), TypeError),
        ((b"",), TypeError),
        ((b"", "I", 0), ValueError),
        ((b"", "I", 1025), ValueError),
        *(((b"", layout, 16), ValueError) for layout in ("x", "[", "]", "[[S]]", "[*]", "{", "{}", "{0}", "{2000}", "{8", "[{8}]", "[S", "ü")),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_arguments(given, error):
    with pytest.raises(error):
        unpack(*given)
    if error is ValueError and given[2] == 16:
        with pytest.raises(ValueError, match="no layout"):
            unpack(example(), *given[1:])
