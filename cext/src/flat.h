// Reads tables of FlatBuffers whose bytes may be anything: whatever lies outside ends in an error, nothing is read there.
// No Python, and no schema: who calls knows what is where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "FlatBuffers are little endian");

// A run of bytes in the buffer; a vector has so many items.
struct Run {
  size_t at = 0;
  size_t count = 0;
};

class Flat {
 public:
  // Strings may be as long as factor times the buffer together: offsets can lead to one long string again and again.
  Flat(const char *data, size_t size, size_t factor) : data_(data), size_(size), left_(factor * size) {}

  const char *at(size_t place) const { return data_ + place; }
  const char *error() const { return error_; }

  template <typename T>
  bool get(size_t place, T *out) {
    if (place > size_ || size_ - place < sizeof(T)) return fail("an offset leads outside");
    std::memcpy(out, data_ + place, sizeof(T));
    return true;
  }

  // Where the place after an offset is that lies there.
  bool follow(size_t place, size_t *out) {
    uint32_t offset;
    if (!get(place, &offset)) return false;
    *out = place + offset;
    return true;
  }

  bool string(size_t place, Run *out) {
    uint32_t nbytes;
    size_t start;
    if (!follow(place, &start) || !get(start, &nbytes)) return false;
    if (nbytes > size_ - start - sizeof nbytes) return fail("a string reaches past the end");
    if (nbytes > left_) return fail("its strings are together too long");
    left_ -= nbytes;
    *out = {start + sizeof nbytes, nbytes};
    return true;
  }

  bool vector(size_t place, size_t itemsize, Run *out) {
    uint32_t count;
    size_t start;
    if (!follow(place, &start) || !get(start, &count)) return false;
    if (count > (size_ - start - sizeof count) / itemsize) return fail("a vector reaches past the end");
    *out = {start + sizeof count, count};
    return true;
  }

  bool fail(const char *what) {
    if (!error_) error_ = what;
    return false;
  }

 private:
  const char *data_;
  size_t size_, left_;
  const char *error_ = nullptr;
};

// A table at a place; the fields are numbered in the order of the schema.
class FlatTable {
 public:
  bool open(Flat *flat, size_t place) {
    int32_t back;
    if (!flat->get(place, &back)) return false;
    const int64_t vtable = static_cast<int64_t>(place) - back;
    if (vtable < 0) return flat->fail("a table starts before the beginning");
    at_ = place;
    vtable_ = static_cast<size_t>(vtable);
    return flat->get(vtable_, &nbytes_);
  }

  // Where a field is, or 0 for one that the table does not have.
  bool place(Flat *flat, size_t field, size_t *out) const {
    const size_t slot = 2 * sizeof(uint16_t) + field * sizeof(uint16_t);
    uint16_t offset = 0;
    if (slot + sizeof offset <= nbytes_ && !flat->get(vtable_ + slot, &offset)) return false;
    *out = offset ? at_ + offset : 0;
    return true;
  }

 private:
  size_t at_ = 0, vtable_ = 0;
  uint16_t nbytes_ = 0;  // of the vtable
};
