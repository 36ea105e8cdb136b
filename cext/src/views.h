// Tensors over parts of arenas, all of a table at once: a window, an empty tensor, its storage, its sizes and its class
// were five calls of the interpreter for each.
#pragma once

#include <Python.h>

#include <cstdint>
#include <new>
#include <vector>

#include "mapping.h"
#include "tables.h"

// One tensor over a part of an arena, which it keeps mapped. Sizes and strides follow it in memory.
struct View {
  DLManagedTensor managed{};
  MappedArena *arena;
  bool *gone = nullptr;  // told of the release while the tensor is being made

  static View *make(MappedArena *arena, const Rows<int64_t> &dims, size_t at, size_t ndim) {
    void *memory = ::operator new(sizeof(View) + 2 * ndim * sizeof(int64_t), std::nothrow);
    if (!memory) return nullptr;
    View *view = new (memory) View;
    auto *own = reinterpret_cast<int64_t *>(view + 1);
    for (size_t i = 0; i < 2 * ndim; i++) own[i] = dims[at + i];
    view->arena = arena;
    view->managed.dl_tensor.ndim = static_cast<int32_t>(ndim);
    view->managed.dl_tensor.shape = own;
    view->managed.dl_tensor.strides = own + ndim;
    view->managed.manager_ctx = view;
    view->managed.deleter = release;
    arena->tensors.fetch_add(1);
    return view;
  }

  // As for all of an arena: on any thread.
  static void release(DLManagedTensor *managed) {
    auto *view = static_cast<View *>(managed->manager_ctx);
    MappedArena *arena = view->arena;
    if (view->gone) *view->gone = true;
    view->~View();
    ::operator delete(view);
    arena->drop();
  }
};

struct Dtype {
  uint8_t code = 0, bits = 0;  // no bits: DLPack has none like it
};

// What makes tensors of rows. Whoever fills it in frees its objects.
struct Maker {
  Tables tables;
  std::vector<MappedArena *> arenas;
  std::vector<Dtype> dtypes;
  size_t device = 0;  // number of the CPU
  PyObject *from_dlpack = nullptr, *parameter = nullptr;
  PyObject *class_name = nullptr, *grad_name = nullptr;

  // Whether a row is all of a storage in memory that DLPack can tell of.
  bool whole(const TensorRow &t, const StorageRow &s) const {
    const uint8_t bits = dtypes[t.dtype].bits;
    return s.device == device && t.offset == 0 && s.nbytes > 0 && bits >= 8 &&
           takes(tables.dims, t.dims, t.ndim, bits / 8, s.nbytes);
  }

  View *view(const TensorRow &t, const StorageRow &s) const {
    MappedArena *arena = arenas[s.arena];
    View *made = View::make(arena, tables.dims, t.dims, t.ndim);
    if (!made) return nullptr;
    made->managed.dl_tensor.data = static_cast<char *>(arena->base) + s.offset;
    made->managed.dl_tensor.device = {kDLCPU, 0};
    made->managed.dl_tensor.dtype = {dtypes[t.dtype].code, dtypes[t.dtype].bits, 1};
    return made;
  }

  PyObject *consumed(View *view) const {
    PyObject *capsule = PyCapsule_New(&view->managed, kCapsuleName, release_unconsumed);
    if (!capsule) {
      View::release(&view->managed);
      return nullptr;
    }
    bool gone = false;
    view->gone = &gone;
    PyObject *result = PyObject_CallFunctionObjArgs(from_dlpack, capsule, nullptr);
    if (!gone) view->gone = nullptr;
    // A consumer that fails when it has taken the memory over has released it and left the name as it was.
    if (gone) PyCapsule_SetName(capsule, kUsedCapsuleName);
    Py_DECREF(capsule);
    return result;
  }

  // A new reference; nullptr with an exception.
  PyObject *tensor(const TensorRow &t, const StorageRow &s) const {
    View *made = view(t, s);
    PyObject *result = made ? consumed(made) : PyErr_NoMemory();
    // As torch's UninitializedParameter does it: another tensor for the other class takes a third of the time.
    if (result && (t.flags & kParameter) != 0 && PyObject_SetAttr(result, class_name, parameter) != 0) {
      Py_CLEAR(result);
    }
    if (result && (t.flags & kRequiresGrad) != 0 && PyObject_SetAttr(result, grad_name, Py_True) != 0) {
      Py_CLEAR(result);
    }
    return result;
  }

  // (tensors, rest), or nullptr with an exception; rest has (row, owner) for those that are None.
  PyObject *all() const {
    const size_t count = tables.tensors.count;
    std::vector<Py_ssize_t> owners(tables.storages.count, -1);
    std::vector<size_t> left;
    left.reserve(count);
    PyObject *made = nones(count), *rest = PyList_New(0);
    bool ok = made && rest;
    for (size_t i = 0; ok && i < count; i++) {
      const TensorRow t = tables.tensors[i];
      const StorageRow s = tables.storages[t.storage];
      if (owners[t.storage] >= 0 || !whole(t, s)) {
        left.push_back(i);
        continue;
      }
      owners[t.storage] = static_cast<Py_ssize_t>(i);
      PyObject *item = tensor(t, s);
      ok = item && PyList_SetItem(made, static_cast<Py_ssize_t>(i), item) == 0;
    }
    for (size_t i = 0; ok && i < left.size(); i++) {
      const auto row = static_cast<Py_ssize_t>(left[i]);
      PyObject *pair = Py_BuildValue("(nn)", row, owners[tables.tensors[left[i]].storage]);
      ok = pair && PyList_Append(rest, pair) == 0;
      Py_XDECREF(pair);
    }
    PyObject *result = ok ? PyTuple_Pack(2, made, rest) : nullptr;
    Py_XDECREF(made);
    Py_XDECREF(rest);
    return result;
  }

  // The collector, and whoever asks it, sees the list while it is being filled.
  static PyObject *nones(size_t count) {
    PyObject *list = PyList_New(static_cast<Py_ssize_t>(count));
    for (size_t i = 0; list && i < count; i++) {
      Py_INCREF(Py_None);
      PyList_SetItem(list, static_cast<Py_ssize_t>(i), Py_None);
    }
    return list;
  }

  Maker() = default;
  Maker(const Maker &) = delete;
  Maker &operator=(const Maker &) = delete;
  ~Maker() {
    for (MappedArena *arena : arenas) arena->drop();
  }

  // Keeps an arena mapped for as long as this is there, whatever becomes of its capsule.
  void hold(MappedArena *arena) {
    arenas.push_back(arena);
    arena->tensors.fetch_add(1);
  }
};

// The mapping of a capsule of map_arena that nobody has consumed; nullptr with an exception for anything else.
inline MappedArena *to_mapping(PyObject *capsule) {
  auto *managed = static_cast<DLManagedTensor *>(PyCapsule_GetPointer(capsule, kCapsuleName));
  if (!managed) return nullptr;
  if (managed->deleter == release_whole) return static_cast<MappedArena *>(managed->manager_ctx);
  PyErr_SetString(PyExc_ValueError, "not a capsule of map_arena");
  return nullptr;
}

inline bool to_dtype(PyObject *object, Dtype *out) {
  if (object == Py_None) return true;
  int code, bits;
  if (!PyTuple_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "a dtype is (code, bits) or None");
    return false;
  }
  if (!PyArg_ParseTuple(object, "ii:dtype", &code, &bits)) return false;
  if (code < 0 || code > UINT8_MAX || bits < 8 || bits > UINT8_MAX || bits % 8 != 0) {
    PyErr_Format(PyExc_ValueError, "a dtype is out of range: (%d, %d)", code, bits);
    return false;
  }
  *out = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits)};
  return true;
}

template <typename T>
bool to_rows(PyObject *bytes, const char *what, Rows<T> *out) {
  char *data;
  Py_ssize_t nbytes;
  if (PyBytes_AsStringAndSize(bytes, &data, &nbytes) != 0) return false;
  if (static_cast<size_t>(nbytes) % sizeof(T) != 0) {
    PyErr_Format(PyExc_ValueError, "%zd bytes of %s are no whole rows", nbytes, what);
    return false;
  }
  *out = {data, static_cast<size_t>(nbytes) / sizeof(T)};
  return true;
}

// tables is a tuple of three bytes objects, which must outlive the result.
inline bool to_tables(PyObject *tables, Tables *out) {
  if (!PyTuple_Check(tables) || PyTuple_Size(tables) != 3) {
    PyErr_SetString(PyExc_TypeError, "tables are (storages, tensors, dims)");
    return false;
  }
  return to_rows(PyTuple_GetItem(tables, 0), "storages", &out->storages) &&
         to_rows(PyTuple_GetItem(tables, 1), "tensors", &out->tensors) &&
         to_rows(PyTuple_GetItem(tables, 2), "dims", &out->dims);
}

// True if every row leads to something; else an exception is set.
inline bool check(const Tables &tables, const std::vector<uint64_t> &sizes, size_t dtypes, size_t devices) {
  const Finding found = examine(tables, sizes.data(), sizes.size(), dtypes, devices);
  switch (found.fault) {
    case Fault::kFine:
      return true;
    case Fault::kDims:
      PyErr_Format(PyExc_ValueError, "the size or stride %zu is negative", found.row);
      break;
    case Fault::kDevice:
      PyErr_Format(PyExc_ValueError, "storage %zu is on a device that is not there", found.row);
      break;
    case Fault::kArena:
      PyErr_Format(PyExc_ValueError, "storage %zu reaches past the end of its arena", found.row);
      break;
    case Fault::kTensor:
      PyErr_Format(PyExc_ValueError, "tensor %zu refers to something that is not there", found.row);
      break;
  }
  return false;
}
