// Fuzz target for the tables of a manifest (src/tables.h), made for libFuzzer as fuzz_arena is: what was examined leads
// nowhere outside, by a model in 128 bits, where nothing overflows.

#include <string>
#include <vector>

#include "../src/tables.h"
#include "input.h"

namespace {

using wide = unsigned __int128;

bool right(const StorageRow &s, const std::vector<uint64_t> &sizes, size_t devices) {
  if (s.device >= devices) return false;
  return s.nbytes == 0 || (s.arena < sizes.size() && wide{s.offset} + s.nbytes <= sizes[s.arena]);
}

bool right(const TensorRow &t, const Tables &tables, size_t dtypes) {
  return t.storage < tables.storages.count && t.dtype < dtypes && wide{t.dims} + 2 * t.ndim <= tables.dims.count;
}

// The last element by its place, and how many there are, which torch keeps in an int64.
bool fills(const Tables &tables, const TensorRow &t, size_t itemsize, uint64_t nbytes) {
  wide last = 0, elements = 1;
  for (size_t i = t.dims; i < size_t{t.dims} + t.ndim; i++) {
    const int64_t size = tables.dims[i], stride = tables.dims[i + t.ndim];
    if (size < 1 || stride < 0) return false;
    last += wide(size - 1) * wide(stride);
    elements *= wide(size);
    if (last > (wide{1} << 70) || elements > wide{INT64_MAX}) return false;
  }
  return (last + 1) * itemsize == nbytes;
}

// Mostly small numbers, so that rows lead to something.
template <typename T>
T number(Input *in, uint8_t most) {
  const uint8_t how = in->take<uint8_t>();
  return how < 250 ? static_cast<T>(how % (most + 1)) : in->take<T>();
}

template <typename T>
Rows<T> rows(const std::string &bytes) {
  return {bytes.data(), bytes.size() / sizeof(T)};
}

template <typename T>
void append(std::string *bytes, const T &row) {
  bytes->append(reinterpret_cast<const char *>(&row), sizeof row);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Input in{data, size};
  const size_t dtypes = in.take<uint8_t>() % 4, devices = in.take<uint8_t>() % 3;
  std::vector<uint64_t> sizes(in.take<uint8_t>() % 4);
  for (uint64_t &nbytes : sizes) nbytes = number<uint64_t>(&in, 200);
  std::string storages, tensors, dims;
  const size_t counts[] = {in.take<uint8_t>() % 8u, in.take<uint8_t>() % 8u, in.take<uint8_t>() % 16u};
  for (size_t i = 0; i < counts[0]; i++) {
    append(&storages, StorageRow{number<uint64_t>(&in, 100), number<uint64_t>(&in, 100), number<uint32_t>(&in, 3),
                                 number<uint32_t>(&in, 1)});
  }
  for (size_t i = 0; i < counts[1]; i++) {
    append(&tensors, TensorRow{number<uint64_t>(&in, 2), number<uint32_t>(&in, 15), number<uint32_t>(&in, 7),
                               number<uint16_t>(&in, 3), number<uint8_t>(&in, 4), in.take<uint8_t>(), 0});
  }
  for (size_t i = 0; i < counts[2]; i++) append(&dims, number<int64_t>(&in, 12));
  const Tables tables{rows<StorageRow>(storages), rows<TensorRow>(tensors), rows<int64_t>(dims)};

  bool fine = true;
  for (size_t i = 0; i < tables.dims.count; i++) fine = fine && tables.dims[i] >= 0;
  for (size_t i = 0; i < tables.storages.count; i++) fine = fine && right(tables.storages[i], sizes, devices);
  for (size_t i = 0; i < tables.tensors.count; i++) fine = fine && right(tables.tensors[i], tables, dtypes);
  const Finding found = examine(tables, sizes.data(), sizes.size(), dtypes, devices);
  check((found.fault == Fault::kFine) == fine, "examine");
  if (!fine) return 0;
  for (size_t i = 0; i < tables.tensors.count; i++) {
    const TensorRow t = tables.tensors[i];
    const uint64_t nbytes = tables.storages[t.storage].nbytes;
    for (const size_t itemsize : {1, 2, 4, 8, 16}) {
      check(takes(tables.dims, t.dims, t.ndim, itemsize, nbytes) == fills(tables, t, itemsize, nbytes), "takes");
    }
  }
  return 0;
}
