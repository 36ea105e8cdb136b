// Fuzz target for what the helper does to files and memory (src/arena.h): made for libFuzzer, and driver.cpp runs it where
// there is only g++. A write is compared with a plain model of it, and the file is then mapped and copied back.

#include "../src/arena.h"
#include "input.h"

namespace {

constexpr size_t kSource = 1 << 12;
constexpr size_t kMostPieces = 64;  // and so memory and time do not grow with the input

// A model of fits and addressable in 128 bits, where nothing overflows.
void check_ranges(size_t offset, size_t size, size_t nbytes, size_t address) {
  using wide = unsigned __int128;
  check(fits(offset, size, nbytes) == (wide{offset} + size <= nbytes), "fits");
  check(addressable(address, size) == (address != 0 && wide{address} + size <= wide{INT64_MAX}), "addressable");
}

int new_file(size_t nbytes) {
  const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  check(fd >= 0 && ftruncate(fd, static_cast<off_t>(nbytes)) == 0, "memfd");
  return fd;
}

// The mapping of a file whose size the caller has wrong or right: refused, or equal to the model.
void check_mapping(int fd, size_t nbytes, size_t claimed, const std::vector<char> &model, bool copy) {
  const Failure wrong = check_size(fd, claimed);
  check(wrong.wrong_size == (claimed != nbytes), "check_size");
  if (wrong) return;
  void *base = nullptr;
  const int prot = PROT_READ | PROT_WRITE;
  Failure failure = copy ? map_aligned(nbytes, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, &base)
                         : map_aligned(nbytes, prot, MAP_PRIVATE | MAP_NORESERVE, fd, &base);
  check(!failure && reinterpret_cast<uintptr_t>(base) % kHugePage == 0, "map_aligned");
  if (copy) check(!read_all(fd, static_cast<char *>(base), nbytes), "read_all");
  check(std::memcmp(base, model.data(), nbytes) == 0, "what was read is not what was written");
  check(munmap(base, nbytes) == 0, "munmap");
  if (copy) {  // a file that is shorter than it was
    std::vector<char> more(nbytes + 1);
    check(read_all(fd, more.data(), nbytes + 1).error == EIO, "read_all past the end");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const std::vector<char> source = [] {
    std::vector<char> bytes(kSource);
    for (size_t i = 0; i < kSource; i++) bytes[i] = static_cast<char>(i * 31 + 7);
    return bytes;
  }();
  Input in{data, size};
  const uint8_t flags = in.take<uint8_t>();
  const bool mapped = flags & 1, copy = flags & 2, far = flags & 4;
  const int threads = 1 + (flags >> 6);
  const size_t nbytes = 1 + in.take<uint16_t>() + (far ? kSpan - (1 << 15) : 0);  // around the end of a thread's part
  const size_t claimed = (flags & 8) ? in.take<uint64_t>() : nbytes;

  std::vector<Span> spans;
  while (in.left > 0 && spans.size() < kMostPieces) {
    const uint64_t offset = in.take<uint64_t>(), length = in.take<uint64_t>(), address = in.take<uint64_t>();
    check_ranges(offset, length, nbytes, address);
    const size_t start = address % kSource;
    // Only what lies in the source is written: the caller of the helper vouches for addresses.
    const size_t n = std::min<size_t>(length, kSource - start);
    const size_t at = fits(offset, n, nbytes) ? offset : offset % nbytes;
    if (n > 0 && fits(at, n, nbytes)) spans.push_back({at, source.data() + start, n});
  }
  std::vector<char> model(nbytes, 0);
  std::vector<char> taken(nbytes, 0);
  bool clash = false;
  for (const Span &span : spans) {
    for (size_t i = 0; i < span.nbytes; i++) {
      clash = clash || taken[span.offset + i];
      taken[span.offset + i] = 1;
      model[span.offset + i] = span.from[i];
    }
  }
  const bool refused = overlap(&spans) != 0;
  check(refused == clash, "overlap");
  if (refused) return 0;

  const int fd = new_file(nbytes);
  void *base = nullptr;
  if (mapped) check(!map_aligned(nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, &base), "map_aligned to write");
  const std::vector<Span> parts = cut(spans);
  for (const Span &part : parts) check(part.offset / kSpan == (part.offset + part.nbytes - 1) / kSpan, "cut");
  check(thread_count(threads, spans) >= 1, "thread_count");
  check(copy_parts(parts, threads, static_cast<char *>(base), fd) == 0, "copy_parts");
  if (base) munmap(base, nbytes);
  check_mapping(fd, nbytes, claimed, model, copy);
  close(fd);
  return 0;
}
