// An arena in memory, and the DLPack tensors over it that keep it there.
#pragma once

#include <Python.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arena.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

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
constexpr char kCapsuleName[] = "dltensor", kUsedCapsuleName[] = "used_dltensor";

constexpr int kNoLease = -1;

inline std::atomic<long long> live{0};
inline std::atomic<long long> released{0};

// One mapped or copied arena with its lease, and the tensor that describes all of it.
struct MappedArena {
  DLManagedTensor managed{};
  int64_t shape = 0;
  int64_t stride = 1;
  void *base = nullptr;
  int lease = -1;
  std::atomic<size_t> tensors{1};  // of all of it and of parts

  MappedArena() = default;
  MappedArena(const MappedArena &) = delete;
  MappedArena &operator=(const MappedArena &) = delete;
  ~MappedArena() {
    if (base) munmap(base, static_cast<size_t>(shape));
    if (lease >= 0) close(lease);  // last: the lease outlives the mapping
  }

  Failure open(int fd, size_t nbytes, bool populate, bool copy, int leased);

  // Runs on any thread, with or without the GIL, also after the interpreter is gone.
  void drop() {
    if (tensors.fetch_sub(1) != 1) return;
    delete this;
    live.fetch_sub(1);
    released.fetch_add(1);
  }
};

inline void release_whole(DLManagedTensor *managed) { static_cast<MappedArena *>(managed->manager_ctx)->drop(); }

// The duplicate is of leased, if there is one: memory can be that of one file and its lease the handle of another.
inline Failure MappedArena::open(int fd, size_t nbytes, bool populate, bool copy, int leased) {
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
  managed.deleter = release_whole;
  return {};
}

// A consumer renames the capsule to "used_dltensor" and calls the deleter itself.
inline void release_unconsumed(PyObject *capsule) {
  if (!PyCapsule_IsValid(capsule, kCapsuleName)) return;
  auto *managed = static_cast<DLManagedTensor *>(PyCapsule_GetPointer(capsule, kCapsuleName));
  managed->deleter(managed);
}
