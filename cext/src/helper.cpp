// Maps arenas as DLPack capsules and fills them. No torch headers, stable ABI of Python 3.10.
//
// Every system call that may wait for a file system runs without the GIL. PyEval_RestoreThread can end a daemon thread
// by unwinding it while the interpreter shuts down, so it is never called from a destructor or a noexcept function.

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>

#include "arena.h"
#include "copier.h"
#include "kinds.h"
#include "mapping.h"
#include "modules.h"
#include "opening.h"
#include "unpack.h"
#include "views.h"

namespace {

PyObject *raise(const Failure &failure, long long nbytes) {
  if (failure.wrong_size) {
    return PyErr_Format(PyExc_ValueError, "the file has %lld bytes, not %lld", failure.size, nbytes);
  }
  PyObject *text = PyUnicode_FromFormat("%s of %lld bytes: %s", failure.what, nbytes, std::strerror(failure.error));
  PyObject *args = text ? Py_BuildValue("(iN)", failure.error, text) : nullptr;
  if (args) {
    PyErr_SetObject(PyExc_OSError, args);  // OSError picks the subclass of the errno
    Py_DECREF(args);
  }
  return nullptr;
}

// An integer of 0..INT64_MAX; ValueError outside it.
bool to_size(PyObject *object, const char *name, size_t *out) {
  PyObject *number = PyNumber_Index(object);
  if (!number) return false;
  const long long value = PyLong_AsLongLong(number);
  Py_DECREF(number);
  const bool overflow = value == -1 && PyErr_Occurred();
  if (overflow && !PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
  if (overflow || value < 0) {
    PyErr_Format(PyExc_ValueError, "%s is out of range: %S", name, object);
    return false;
  }
  *out = static_cast<size_t>(value);
  return true;
}

bool to_arena_size(PyObject *object, size_t *nbytes) {
  if (!to_size(object, "nbytes", nbytes)) return false;
  if (*nbytes == 0) PyErr_SetString(PyExc_ValueError, "nbytes must not be 0");
  return *nbytes != 0;
}

PyObject *map_arena(PyObject *, PyObject *args, PyObject *kwargs) {
  static const char *names[] = {"fd", "nbytes", "populate", "copy", "lease", nullptr};
  int fd, populate = 0, copy = 0, lease = kNoLease;
  PyObject *size;
  size_t nbytes;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|ppi:map_arena", const_cast<char **>(names), &fd, &size, &populate,
                                   &copy, &lease) ||
      !to_arena_size(size, &nbytes)) {
    return nullptr;
  }
  std::unique_ptr<MappedArena> mapping(new (std::nothrow) MappedArena);
  if (!mapping) return PyErr_NoMemory();
  Failure failure;
  Py_BEGIN_ALLOW_THREADS;
  failure = mapping->open(fd, nbytes, populate != 0, copy != 0, lease);
  if (failure) mapping.reset();
  Py_END_ALLOW_THREADS;
  if (failure) return raise(failure, static_cast<long long>(nbytes));
  PyObject *capsule = PyCapsule_New(&mapping->managed, kCapsuleName, release_unconsumed);
  if (!capsule) return nullptr;
  mapping.release();
  live.fetch_add(1);
  return capsule;
}

bool to_path(PyObject *object, std::string *out) {
  PyObject *bytes;
  if (!PyUnicode_FSConverter(object, &bytes)) return false;
  *out = PyBytes_AsString(bytes);
  Py_DECREF(bytes);
  return true;
}

PyObject *to_bytes(const std::string &bytes) {
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}

constexpr char kOpenedName[] = "overmind_cext.opened";

void let_go(PyObject *capsule) { delete static_cast<Opened *>(PyCapsule_GetPointer(capsule, kOpenedName)); }

// Descriptors are numbers beside an object that has them: a signal may come between this and any other call.
PyObject *to_result(Opened *found) {
  const std::string manifest = std::move(found->manifest), structure = std::move(found->structure);
  auto owned = std::make_unique<Opened>(std::move(*found));
  PyObject *files = PyCapsule_New(owned.get(), kOpenedName, let_go);
  if (!files) return nullptr;
  const Opened *opened = owned.release();
  PyObject *arenas = PyTuple_New(static_cast<Py_ssize_t>(opened->arenas.size()));
  for (size_t i = 0; arenas && i < opened->arenas.size(); i++) {
    const OpenFile &arena = opened->arenas[i];
    PyObject *row = Py_BuildValue("(iIKK)", arena.fd.get(), arena.uid, static_cast<unsigned long long>(arena.nbytes),
                                  static_cast<unsigned long long>(arena.inode));
    if (!row || PyTuple_SetItem(arenas, static_cast<Py_ssize_t>(i), row) != 0) Py_CLEAR(arenas);
  }
  return Py_BuildValue(
      "((KL)iNNiNNINI)", static_cast<unsigned long long>(opened->device), static_cast<long long>(opened->mtime_ns),
      opened->error, PyUnicode_DecodeFSDefault(opened->name.c_str()), files, opened->folder.get(), arenas,
      to_bytes(manifest), opened->owner, to_bytes(structure), opened->author);
}

// None where it takes longer than until then.
PyObject *wait_for(const std::shared_ptr<Opening> &opening, std::chrono::steady_clock::time_point until) {
  using std::chrono::steady_clock;
  // In parts: a signal wakes nobody here. Once more at the end, since the GIL may have been away for long.
  const steady_clock::duration part = std::chrono::milliseconds(100), none{};
  bool done = false;
  for (auto left = part; !done && left > none;) {
    left = std::max(none, until - steady_clock::now());
    Py_BEGIN_ALLOW_THREADS;
    done = opening->wait(std::min(left, part));
    Py_END_ALLOW_THREADS;
    if (!done && PyErr_CheckSignals() != 0) return nullptr;
  }
  if (done) return to_result(opening->found());
  Py_INCREF(Py_None);
  return Py_None;
}

PyObject *open_entry(PyObject *, PyObject *args) {
  using std::chrono::steady_clock;
  PyObject *root, *folder;
  int hold;
  double seconds;
  if (!PyArg_ParseTuple(args, "OOpd:open_entry", &root, &folder, &hold, &seconds)) return nullptr;
  if (!(seconds > 0)) return PyErr_Format(PyExc_ValueError, "no such time: %S", PyTuple_GetItem(args, 3));
  const std::chrono::duration<double> time(std::min(seconds, 1e9));
  try {
    Asked asked;
    if (!to_path(root, &asked.root) || !to_path(folder, &asked.folder)) return nullptr;
    asked.hold = hold != 0;
    const auto opening = std::make_shared<Opening>(asked);
    if (const int error = Opening::start(opening)) {
      return PyErr_Format(PyExc_RuntimeError, "no thread can be started: %s", std::strerror(error));
    }
    return wait_for(opening, steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(time));
  } catch (const std::bad_alloc &) {
    return PyErr_NoMemory();
  }
}

PyObject *check_tables(PyObject *, PyObject *args) {
  PyObject *tables, *sizes;
  Py_ssize_t dtypes, devices;
  if (!PyArg_ParseTuple(args, "OOnn:check_tables", &tables, &sizes, &dtypes, &devices)) return nullptr;
  if (dtypes < 0 || devices < 0) return PyErr_Format(PyExc_ValueError, "fewer than none: %zd, %zd", dtypes, devices);
  PyObject *tuple = PySequence_Tuple(sizes);
  if (!tuple) return nullptr;
  PyObject *result = nullptr;
  try {
    Tables rows;
    std::vector<uint64_t> nbytes(static_cast<size_t>(PyTuple_Size(tuple)));
    bool ok = to_tables(tables, &rows);
    for (size_t i = 0; ok && i < nbytes.size(); i++) {
      nbytes[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(tuple, static_cast<Py_ssize_t>(i)));
      ok = !PyErr_Occurred();
    }
    if (ok && check(rows, nbytes, static_cast<size_t>(dtypes), static_cast<size_t>(devices))) {
      Py_INCREF(Py_None);
      result = Py_None;
    }
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  }
  Py_DECREF(tuple);
  return result;
}

// Tuples of both; on failure an exception is set.
bool to_maker(PyObject *arenas, PyObject *dtypes, Maker *out) {
  std::vector<uint64_t> sizes;
  for (Py_ssize_t i = 0; i < PyTuple_Size(arenas); i++) {
    MappedArena *arena = to_mapping(PyTuple_GetItem(arenas, i));
    if (!arena) return false;
    out->hold(arena);
    sizes.push_back(static_cast<uint64_t>(arena->shape));
  }
  out->dtypes.resize(static_cast<size_t>(PyTuple_Size(dtypes)));
  for (size_t i = 0; i < out->dtypes.size(); i++) {
    if (!to_dtype(PyTuple_GetItem(dtypes, static_cast<Py_ssize_t>(i)), &out->dtypes[i])) return false;
  }
  // Again, since the arenas are known now; which devices there are is torch's affair.
  return check(out->tables, sizes, out->dtypes.size(), SIZE_MAX);
}

PyObject *tensors(PyObject *, PyObject *args) {
  PyObject *arenas, *tables, *dtypes;
  Py_ssize_t device;
  Maker maker;
  if (!PyArg_ParseTuple(args, "OOOnOO:tensors", &arenas, &tables, &dtypes, &device, &maker.from_dlpack,
                        &maker.parameter) ||
      !to_tables(tables, &maker.tables)) {
    return nullptr;
  }
  maker.device = static_cast<size_t>(device);
  // Nobody can change them while they are read.
  PyObject *mapped = PySequence_Tuple(arenas), *kinds = mapped ? PySequence_Tuple(dtypes) : nullptr;
  maker.class_name = PyUnicode_InternFromString("__class__");
  maker.grad_name = PyUnicode_InternFromString("requires_grad");
  PyObject *result = nullptr;
  try {
    if (kinds && maker.class_name && maker.grad_name && to_maker(mapped, kinds, &maker)) result = maker.all();
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  }
  for (PyObject *object : {mapped, kinds, maker.class_name, maker.grad_name}) Py_XDECREF(object);
  return result;
}

// Reads and checks all pieces before anything is written; on failure a Python exception is set. Overlapping pieces are
// refused because threads would race for the bytes.
bool collect(PyObject *header, PyObject *pieces, size_t nbytes, std::vector<Span> *out) {
  char *text;
  Py_ssize_t length;
  if (PyBytes_AsStringAndSize(header, &text, &length) != 0) return false;
  if (static_cast<size_t>(length) > nbytes) {
    PyErr_Format(PyExc_ValueError, "the header has %zd bytes, the file %zu", length, nbytes);
    return false;
  }
  if (length > 0) out->push_back({0, text, static_cast<size_t>(length)});
  const Py_ssize_t count = PyTuple_Size(pieces);
  out->reserve(out->size() + static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *piece = PySequence_Tuple(PyTuple_GetItem(pieces, i));
    if (!piece) return false;
    size_t offset = 0, address = 0, size = 0;
    bool ok = PyTuple_Size(piece) == 3;
    if (!ok) PyErr_Format(PyExc_ValueError, "piece %zd is not (offset, address, nbytes)", i);
    ok = ok && to_size(PyTuple_GetItem(piece, 0), "offset", &offset) &&
         to_size(PyTuple_GetItem(piece, 1), "address", &address) &&
         to_size(PyTuple_GetItem(piece, 2), "piece size", &size);
    Py_DECREF(piece);
    if (!ok) return false;
    if (!fits(offset, size, nbytes)) {
      PyErr_Format(PyExc_ValueError, "piece %zd: %zu bytes at %zu do not fit into %zu", i, size, offset, nbytes);
      return false;
    }
    if (size == 0) continue;
    if (!addressable(address, size)) {
      PyErr_Format(PyExc_ValueError, "piece %zd: no %zu bytes at address %zu", i, size, address);
      return false;
    }
    out->push_back({offset, reinterpret_cast<const char *>(address), size});
  }
  if (const size_t i = overlap(out)) {
    const Span &before = (*out)[i - 1], &here = (*out)[i];
    PyErr_Format(PyExc_ValueError, "%zu bytes at %zu overlap %zu bytes at %zu", before.nbytes, before.offset,
                 here.nbytes, here.offset);
    return false;
  }
  return true;
}

PyObject *write_checked(int fd, size_t nbytes, PyObject *header, PyObject *pieces, int threads, bool mapped) {
  std::vector<Span> spans;
  if (!collect(header, pieces, nbytes, &spans)) return nullptr;
  const std::vector<Span> parts = cut(spans);
  threads = thread_count(threads, spans);
  Failure failure;
  void *base = nullptr;
  int flags = 0;
  Py_BEGIN_ALLOW_THREADS;
  if ((flags = fcntl(fd, F_GETFL)) < 0) {
    failure = failed("fcntl(F_GETFL)");
  } else if (!mapped && (flags & O_APPEND) != 0) {
    failure = {EINVAL, "pwrite to an O_APPEND file", false, 0};  // Linux would ignore the offset
  } else {
    failure = check_size(fd, nbytes);
  }
  Py_END_ALLOW_THREADS;
  if (mapped && !failure) {
    // With the GIL, as os.fork() takes it: no child can inherit the shared mapping, which would prevent sealing.
    failure = map_aligned(nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, &base);
    if (base) madvise(base, nbytes, MADV_DONTFORK);
  }
  if (failure) return raise(failure, static_cast<long long>(nbytes));
  int error = 0;
  Py_BEGIN_ALLOW_THREADS;
  error = copy_parts(parts, threads, static_cast<char *>(base), fd);
  if (base) munmap(base, nbytes);
  Py_END_ALLOW_THREADS;
  if (error != 0) return raise({error, "pwrite", false, 0}, static_cast<long long>(nbytes));
  Py_RETURN_NONE;
}

PyObject *write_arena(PyObject *, PyObject *args, PyObject *kwargs) {
  static const char *names[] = {"fd", "nbytes", "header", "pieces", "threads", "mapped", nullptr};
  int fd, threads = 0, mapped = 1;
  PyObject *size, *header, *pieces;
  size_t nbytes;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOSO|ip:write_arena", const_cast<char **>(names), &fd, &size,
                                   &header, &pieces, &threads, &mapped) ||
      !to_arena_size(size, &nbytes)) {
    return nullptr;
  }
  if (threads < 0) return PyErr_Format(PyExc_ValueError, "threads is out of range: %d", threads);
  PyObject *tuple = PySequence_Tuple(pieces);  // nobody can change it while it is read
  if (!tuple) return nullptr;
  PyObject *result = nullptr;
  try {
    result = write_checked(fd, nbytes, header, tuple, threads, mapped != 0);
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  }
  Py_DECREF(tuple);
  return result;
}

// An image of a plan (nbytes, header, pieces); on failure a Python exception is set.
bool to_image(PyObject *plan, Image *out) {
  PyObject *size, *header, *pieces;
  if (!PyArg_ParseTuple(plan, "OSO", &size, &header, &pieces) || !to_arena_size(size, &out->nbytes)) return false;
  PyObject *tuple = PySequence_Tuple(pieces);
  const bool ok = tuple && collect(header, tuple, out->nbytes, &out->spans);
  Py_XDECREF(tuple);
  return ok;
}

PyObject *start_checked(int sock, PyObject *plans) {
  std::vector<Image> images(static_cast<size_t>(PyTuple_Size(plans)));
  for (size_t i = 0; i < images.size(); i++) {
    PyObject *plan = PyTuple_GetItem(plans, static_cast<Py_ssize_t>(i));
    if (!PyTuple_Check(plan)) return PyErr_Format(PyExc_TypeError, "plan %zu is not (nbytes, header, pieces)", i);
    if (!to_image(plan, &images[i])) return nullptr;
  }
  std::vector<char> buffer(kCompared);
  int pidfd = -1;
  // With the GIL, so that no thread of Python changes anything meanwhile.
  const Failure failure = start(sock, images, buffer.data(), &pidfd);
  if (failure) return raise(failure, static_cast<long long>(images.size()));
  return PyLong_FromLong(pidfd);
}

PyObject *start_copier(PyObject *, PyObject *args) {
  int sock;
  PyObject *plans;
  if (!PyArg_ParseTuple(args, "iO:start_copier", &sock, &plans)) return nullptr;
  if (sock < 0) return PyErr_Format(PyExc_ValueError, "socket is out of range: %d", sock);
  PyObject *tuple = PySequence_Tuple(plans);
  if (!tuple) return nullptr;
  PyObject *result = nullptr;
  try {
    result = start_checked(sock, tuple);
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  }
  Py_DECREF(tuple);
  return result;
}

PyObject *agreement(PyObject *, PyObject *args) {
  int fd;
  PyObject *size, *header, *pieces;
  if (!PyArg_ParseTuple(args, "iOSO:agreement", &fd, &size, &header, &pieces)) return nullptr;
  PyObject *plan = PyTuple_Pack(3, size, header, pieces);
  if (!plan) return nullptr;
  PyObject *result = nullptr;
  try {
    Image image;
    if (to_image(plan, &image)) {
      std::vector<char> buffer(kCompared);
      int64_t agreed;
      Py_BEGIN_ALLOW_THREADS;
      agreed = compare_image(image, fd, buffer.data(), -1);
      Py_END_ALLOW_THREADS;
      result = PyLong_FromLongLong(agreed);
    }
  } catch (const std::bad_alloc &) {
    PyErr_NoMemory();
  }
  Py_DECREF(plan);
  return result;
}

PyObject *live_mappings(PyObject *, PyObject *) { return PyLong_FromLongLong(live.load()); }

PyObject *released_mappings(PyObject *, PyObject *) { return PyLong_FromLongLong(released.load()); }

template <typename Function>
PyCFunction erased(Function *function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"map_arena", erased(map_arena), METH_VARARGS | METH_KEYWORDS,
     "map_arena($module, fd, nbytes, populate=False, copy=False, lease=-1)\n--\n\n"
     "A legacy \"dltensor\" capsule of nbytes uint8 on the CPU: a private, writable, 2 MiB-aligned mapping of fd. It "
     "keeps a duplicate of lease, or else of fd, open until the release."},
    {"open_entry", open_entry, METH_VARARGS,
     "open_entry($module, root, folder, hold, seconds, /)\n--\n\n"
     "What an entry in a folder below root consists of, opened in a thread of its own; None where that takes longer."},
    {"check_tables", check_tables, METH_VARARGS,
     "check_tables($module, tables, sizes, dtypes, devices, /)\n--\n\n"
     "ValueError for a row of a manifest that leads to nothing. tables are the bytes of (storages, tensors, dims), sizes "
     "those of the arenas; the rest are numbers of dtypes and devices."},
    {"tensors", tensors, METH_VARARGS,
     "tensors($module, arenas, tables, dtypes, device, from_dlpack, parameter, /)\n--\n\n"
     "A list with, for each row, a tensor if it is the first one that is all of its storage, or None; and for the latter "
     "(row, owner): which tensor has the storage, or -1. arenas are capsules of map_arena; a dtype is (code, bits) of "
     "DLPack, or None; device is the CPU's number."},
    {"module_filler", module_filler, METH_VARARGS,
     "module_filler($module, names, kinds, /)\n--\n\n"
     "A function of a module and a dict that sets all of its __dict__: a copy of names, for each name of kinds a new "
     "one of that class, and the dict over them."},
    {"kinds", kinds, METH_O,
     "kinds($module, modules, /)\n--\n\n"
     "The set of training modes of modules and all below them, and that of (dtype, device, requires_grad) of their "
     "tensors."},
    {"unpack", unpack, METH_VARARGS,
     "unpack($module, data, layout, factor, /)\n--\n\n"
     "A tuple with the fields of the root table of a FlatBuffer. A layout has a letter for each, in their order: I Q q d "
     "for numbers, s for a string, S for one that must be there, * for a list of them, [...] for a list of tables, {n} "
     "for the bytes of structs of n bytes, - for what is left out. All strings take at most factor times the data."},
    {"write_arena", erased(write_arena), METH_VARARGS | METH_KEYWORDS,
     "write_arena($module, fd, nbytes, header, pieces, threads=0, mapped=True)\n--\n\n"
     "Write header at 0 and each piece (offset, address, nbytes) of memory at its offset, with the GIL released."},
    {"start_copier", start_copier, METH_VARARGS,
     "start_copier($module, socket, plans, /)\n--\n\n"
     "Fork a process that copies from the memory of this one as it is now, told over the other end of socket; a pidfd. "
     "A plan is (nbytes, header, pieces), as for write_arena."},
    {"agreement", agreement, METH_VARARGS,
     "agreement($module, fd, nbytes, header, pieces, /)\n--\n\n"
     "How many bytes of a file agree, from its start, with what write_arena would write; padding counts as equal."},
    {"live_mappings", live_mappings, METH_NOARGS,
     "live_mappings($module)\n--\n\nHow many mappings of this process are not released yet."},
    {"released_mappings", released_mappings, METH_NOARGS,
     "released_mappings($module)\n--\n\nHow many mappings this process has released."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {{0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_helper", nullptr, 0, methods, slots, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__helper() { return PyModuleDef_Init(&module); }
