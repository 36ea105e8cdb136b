// Maps arenas as DLPack capsules and fills them. No torch headers, stable ABI of Python 3.10.
//
// Every system call that may wait for a file system runs without the GIL. PyEval_RestoreThread can end a daemon thread
// by unwinding it while the interpreter shuts down, so it is never called from a destructor or a noexcept function.

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace {

static_assert(sizeof(size_t) == 8 && sizeof(off_t) == 8, "needs a 64-bit platform");

// The legacy (unversioned) part of dlpack.h: torch 2.4 refuses the versioned one.
struct DLDevice {
  int32_t device_type, device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DLTensor {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(DLManagedTensor *);
};
constexpr int32_t kDLCPU = 1;
constexpr uint8_t kDLUInt = 1;
constexpr char kCapsuleName[] = "dltensor";

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kReadChunk = size_t{64} << 20;
constexpr size_t kSpan = size_t{4} << 20;  // what a writing thread takes at a time
constexpr int kMaxThreads = 64;
constexpr int kNoLease = -1;

std::atomic<long long> live{0};
std::atomic<long long> released{0};

// What went wrong without the GIL; raised as OSError, or as ValueError if the file has another size.
struct Failure {
  int error = 0;
  const char *what = nullptr;
  bool wrong_size = false;
  long long size = 0;  // of the file

  explicit operator bool() const { return error != 0 || wrong_size; }
};

Failure failed(const char *what) { return {errno, what, false, 0}; }

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

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

Failure check_size(int fd, size_t nbytes) {
  struct stat st;
  if (fstat(fd, &st) != 0) return failed("fstat");
  if (static_cast<uint64_t>(st.st_size) != nbytes) return {0, nullptr, true, st.st_size};
  return {};
}

// Maps nbytes at a multiple of 2 MiB, as elsewhere huge pages would be mapped as small ones: reserves more address
// space than needed, gives the ends back and maps over the rest.
Failure map_aligned(size_t nbytes, int prot, int flags, int fd, void **out) {
  const size_t length = round_up(nbytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  void *reserved = mmap(nullptr, length + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return failed("mmap (address space)");
  char *low = static_cast<char *>(reserved);
  const size_t head = round_up(reinterpret_cast<uintptr_t>(low), kHugePage) - reinterpret_cast<uintptr_t>(low);
  const size_t tail = kHugePage - head;  // more than nothing, as head < kHugePage
  char *start = low + head;
  if ((head != 0 && munmap(low, head) != 0) || munmap(start + length, tail) != 0) {
    const Failure failure = failed("munmap (address space)");
    munmap(low, length + kHugePage);
    return failure;
  }
  if (mmap(start, nbytes, prot, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const Failure failure = failed("mmap");
    munmap(start, length);
    return failure;
  }
  *out = start;
  return {};
}

Failure read_all(int fd, char *to, size_t nbytes) {
  size_t done = 0;
  while (done < nbytes) {
    const ssize_t n = pread(fd, to + done, std::min(nbytes - done, kReadChunk), static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("pread");
    if (n == 0) return {EIO, "pread (the file ended early)", false, 0};
    done += static_cast<size_t>(n);
  }
  return {};
}

// One mapped or copied arena with its lease, and the tensor that describes it.
struct Mapping {
  DLManagedTensor managed{};
  int64_t shape = 0;
  int64_t stride = 1;
  void *base = nullptr;
  int lease = -1;

  Mapping() = default;
  Mapping(const Mapping &) = delete;
  Mapping &operator=(const Mapping &) = delete;
  ~Mapping() {
    if (base) munmap(base, static_cast<size_t>(shape));
    if (lease >= 0) close(lease);  // last: the lease outlives the mapping
  }

  Failure open(int fd, size_t nbytes, bool populate, bool copy, int leased);
};

// Runs on any thread, with or without the GIL, also after the interpreter is gone.
void release(DLManagedTensor *managed) {
  delete static_cast<Mapping *>(managed->manager_ctx);
  live.fetch_sub(1);
  released.fetch_add(1);
}

// The duplicate is of leased, if there is one: memory can be that of one file and its lease the handle of another.
Failure Mapping::open(int fd, size_t nbytes, bool populate, bool copy, int leased) {
  lease = fcntl(leased == kNoLease ? fd : leased, F_DUPFD_CLOEXEC, 0);
  if (lease < 0) return failed("fcntl(F_DUPFD_CLOEXEC)");
  if (leased == kNoLease) fd = lease;
  if (Failure failure = check_size(fd, nbytes)) return failure;
  shape = static_cast<int64_t>(nbytes);
  const int prot = PROT_READ | PROT_WRITE;
  if (copy) {
    if (Failure failure = map_aligned(nbytes, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, &base)) return failure;
    madvise(base, nbytes, MADV_HUGEPAGE);  // a hint
    if (Failure failure = read_all(fd, static_cast<char *>(base), nbytes)) return failure;
  } else {
    if (Failure failure = map_aligned(nbytes, prot, MAP_PRIVATE | MAP_NORESERVE, fd, &base)) return failure;
    // EINVAL: a kernel before 5.14; the pages come at first use then.
    if (populate && madvise(base, nbytes, MADV_POPULATE_READ) != 0 && errno != EINVAL) {
      return failed("madvise(MADV_POPULATE_READ)");
    }
  }
  managed.dl_tensor.data = base;
  managed.dl_tensor.device = {kDLCPU, 0};
  managed.dl_tensor.ndim = 1;
  managed.dl_tensor.dtype = {kDLUInt, 8, 1};
  managed.dl_tensor.shape = &shape;
  managed.dl_tensor.strides = &stride;
  managed.manager_ctx = this;
  managed.deleter = release;
  return {};
}

// A consumer renames the capsule to "used_dltensor" and calls the deleter itself.
void release_unconsumed(PyObject *capsule) {
  if (!PyCapsule_IsValid(capsule, kCapsuleName)) return;
  auto *managed = static_cast<DLManagedTensor *>(PyCapsule_GetPointer(capsule, kCapsuleName));
  managed->deleter(managed);
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
  std::unique_ptr<Mapping> mapping(new (std::nothrow) Mapping);
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

// A part of the arena and the memory that it is copied from.
struct Span {
  size_t offset;
  const char *from;
  size_t nbytes;
};

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
    if (offset > nbytes || size > nbytes - offset) {
      PyErr_Format(PyExc_ValueError, "piece %zd: %zu bytes at %zu do not fit into %zu", i, size, offset, nbytes);
      return false;
    }
    if (size == 0) continue;
    if (address == 0 || size > static_cast<size_t>(INT64_MAX) - address) {
      PyErr_Format(PyExc_ValueError, "piece %zd: no %zu bytes at address %zu", i, size, address);
      return false;
    }
    out->push_back({offset, reinterpret_cast<const char *>(address), size});
  }
  std::sort(out->begin(), out->end(), [](const Span &a, const Span &b) { return a.offset < b.offset; });
  for (size_t i = 1; i < out->size(); i++) {
    const Span &before = (*out)[i - 1], &here = (*out)[i];
    if (before.offset + before.nbytes > here.offset) {
      PyErr_Format(PyExc_ValueError, "%zu bytes at %zu overlap %zu bytes at %zu", before.nbytes, before.offset,
                   here.nbytes, here.offset);
      return false;
    }
  }
  return true;
}

// Cuts the spans at multiples of kSpan of the file, so that two threads rarely fault the same huge page.
std::vector<Span> cut(const std::vector<Span> &spans) {
  std::vector<Span> parts;
  parts.reserve(spans.size());
  for (Span span : spans) {
    while (span.nbytes > 0) {
      const size_t n = std::min(span.nbytes, kSpan - span.offset % kSpan);
      parts.push_back({span.offset, span.from, n});
      span = {span.offset + n, span.from + n, span.nbytes - n};
    }
  }
  return parts;
}

int write_span(int fd, const Span &span) {
  size_t done = 0;
  while (done < span.nbytes) {
    const ssize_t n = pwrite(fd, span.from + done, span.nbytes - done, static_cast<off_t>(span.offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    done += static_cast<size_t>(n);
  }
  return 0;
}

// Copies the parts into the mapping at base or, without one, to fd; each thread takes the next part that is left.
// Returns the errno of the first failure.
int copy_parts(const std::vector<Span> &parts, int threads, char *base, int fd) {
  std::atomic<size_t> next{0};
  std::atomic<int> error{0};
  auto work = [&] {
    for (size_t i; error.load() == 0 && (i = next.fetch_add(1)) < parts.size();) {
      if (base) {
        std::memcpy(base + parts[i].offset, parts[i].from, parts[i].nbytes);
      } else if (const int e = write_span(fd, parts[i])) {
        int none = 0;
        error.compare_exchange_strong(none, e);
      }
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(static_cast<size_t>(threads));
    while (static_cast<int>(others.size()) + 1 < threads) others.emplace_back(work);
  } catch (const std::exception &) {
    // No more threads or memory to be had: those that run do it all.
  }
  work();
  for (std::thread &other : others) other.join();
  return error.load();
}

int thread_count(int wanted, const std::vector<Span> &spans) {
  if (wanted == 0) wanted = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
  size_t total = 0;
  for (const Span &span : spans) total += span.nbytes;
  return static_cast<int>(std::min<size_t>(static_cast<size_t>(std::min(wanted, kMaxThreads)), total / kSpan + 1));
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
    {"write_arena", erased(write_arena), METH_VARARGS | METH_KEYWORDS,
     "write_arena($module, fd, nbytes, header, pieces, threads=0, mapped=True)\n--\n\n"
     "Write header at 0 and each piece (offset, address, nbytes) of memory at its offset, with the GIL released."},
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
