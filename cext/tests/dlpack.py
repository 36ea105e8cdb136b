"""A consumer of "dltensor" capsules in ctypes, so that most tests need no torch.

ctypes gives up the GIL for calls of CFUNCTYPE functions: releasing here calls the deleter without it.
"""

import ctypes


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]

_USED = b"used_dltensor"  # the capsule keeps the pointer


def name_of(capsule: object) -> bytes:
    return _api.PyCapsule_GetName(capsule)


def peek(capsule: object) -> DLTensor:
    """The tensor of a capsule that is not consumed."""
    return DLManagedTensor.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor")).tensor


class Consumed:
    """Takes the capsule over, as torch does; the memory lives until release()."""

    def __init__(self, capsule: object, name: bytes = _USED) -> None:
        self._pointer = _api.PyCapsule_GetPointer(capsule, b"dltensor")
        _api.PyCapsule_SetName(capsule, name)
        self._managed = DLManagedTensor.from_address(self._pointer)
        self.address: int = self._managed.tensor.data
        self.nbytes: int = self._managed.tensor.shape[0]

    def read(self, offset: int = 0, nbytes: int | None = None) -> bytes:
        return ctypes.string_at(self.address + offset, self.nbytes - offset if nbytes is None else nbytes)

    def write(self, offset: int, content: bytes) -> None:
        assert offset + len(content) <= self.nbytes
        ctypes.memmove(self.address + offset, content, len(content))

    def release(self) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._managed.deleter)(self._pointer)
