// The tables of a manifest as they lie in the file (schema/manifest.fbs), and what must hold in them. No Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the structs of FlatBuffers are little endian");

// A run of bytes in an arena.
struct StorageRow {
  uint64_t offset, nbytes;
  uint32_t arena, device;
};
// A strided view of a storage; offset in elements.
struct TensorRow {
  uint64_t offset;
  uint32_t dims, storage;  // where its sizes and then its strides begin, and a row
  uint16_t dtype;
  uint8_t ndim, flags;
  uint32_t reserved;
};
static_assert(sizeof(StorageRow) == 24 && sizeof(TensorRow) == 24, "as in the schema");

constexpr uint8_t kRequiresGrad = 1, kParameter = 2;

// Rows anywhere in memory, aligned or not.
template <typename T>
struct Rows {
  const char *data = nullptr;
  size_t count = 0;

  T operator[](size_t i) const {
    T row;
    std::memcpy(&row, data + i * sizeof(T), sizeof(T));
    return row;
  }
};

struct Tables {
  Rows<StorageRow> storages;
  Rows<TensorRow> tensors;
  Rows<int64_t> dims;
};

// What a row refers to that is not there; kFine for none.
enum class Fault { kFine, kDevice, kArena, kTensor, kDims };

struct Finding {
  Fault fault = Fault::kFine;
  size_t row = 0;
};

// Whether every index and range is inside; sizes are those of the arenas, in bytes.
inline Finding examine(const Tables &tables, const uint64_t *sizes, size_t arenas, size_t dtypes, size_t devices) {
  for (size_t i = 0; i < tables.dims.count; i++) {
    if (tables.dims[i] < 0) return {Fault::kDims, i};
  }
  for (size_t i = 0; i < tables.storages.count; i++) {
    const StorageRow s = tables.storages[i];
    if (s.device >= devices) return {Fault::kDevice, i};
    if (s.nbytes > 0 && (s.arena >= arenas || !fits(s.offset, s.nbytes, sizes[s.arena]))) return {Fault::kArena, i};
  }
  for (size_t i = 0; i < tables.tensors.count; i++) {
    const TensorRow t = tables.tensors[i];
    if (t.storage >= tables.storages.count || t.dtype >= dtypes || !fits(t.dims, size_t{2} * t.ndim, tables.dims.count)) {
      return {Fault::kTensor, i};
    }
  }
  return {};
}

// Whether a tensor from the first byte on takes just nbytes. Of one whose strides are 0 there may be far more elements:
// torch fails for more than an int64 counts, too late.
inline bool takes(const Rows<int64_t> &dims, size_t at, size_t ndim, size_t itemsize, uint64_t nbytes) {
  uint64_t last = 0;
  int64_t elements = 1;
  for (size_t i = at; i < at + ndim; i++) {
    const int64_t size = dims[i], stride = dims[i + ndim];
    uint64_t step;
    if (size < 1 || stride < 0 ||
        __builtin_mul_overflow(static_cast<uint64_t>(size) - 1, static_cast<uint64_t>(stride), &step) ||
        __builtin_add_overflow(last, step, &last) || __builtin_mul_overflow(elements, size, &elements)) {
      return false;
    }
  }
  return last < nbytes && nbytes % itemsize == 0 && last + 1 == nbytes / itemsize;
}
