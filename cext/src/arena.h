// What the helper does to files and memory, without Python: sizes and ranges are checked here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert(sizeof(size_t) == 8 && sizeof(off_t) == 8, "needs a 64-bit platform");

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kReadChunk = size_t{64} << 20;
constexpr size_t kSpan = size_t{4} << 20;  // what a writing thread takes at a time
constexpr int kMaxThreads = 64;

// What went wrong without the GIL; raised as OSError, or as ValueError if the file has another size.
struct Failure {
  int error = 0;
  const char *what = nullptr;
  bool wrong_size = false;
  long long size = 0;  // of the file

  explicit operator bool() const { return error != 0 || wrong_size; }
};

inline Failure failed(const char *what) { return {errno, what, false, 0}; }

inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

inline Failure check_size(int fd, size_t nbytes) {
  struct stat st;
  if (fstat(fd, &st) != 0) return failed("fstat");
  if (static_cast<uint64_t>(st.st_size) != nbytes) return {0, nullptr, true, st.st_size};
  return {};
}

// Maps nbytes at a multiple of 2 MiB, as elsewhere huge pages would be mapped as small ones: reserves more address
// space than needed, gives the ends back and maps over the rest.
inline Failure map_aligned(size_t nbytes, int prot, int flags, int fd, void **out) {
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

inline Failure read_all(int fd, char *to, size_t nbytes) {
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

// A part of the arena and the memory that it is copied from.
struct Span {
  size_t offset;
  const char *from;
  size_t nbytes;
};

// Whether size bytes at offset lie in a file of nbytes.
inline bool fits(size_t offset, size_t size, size_t nbytes) { return offset <= nbytes && size <= nbytes - offset; }

// Whether there can be size bytes at an address.
inline bool addressable(size_t address, size_t size) {
  return address != 0 && size <= static_cast<size_t>(INT64_MAX) && address <= static_cast<size_t>(INT64_MAX) - size;
}

// Sorts the spans by offset and returns the first one that begins before the end of the one before it, or 0.
inline size_t overlap(std::vector<Span> *spans) {
  std::sort(spans->begin(), spans->end(), [](const Span &a, const Span &b) { return a.offset < b.offset; });
  for (size_t i = 1; i < spans->size(); i++) {
    if ((*spans)[i - 1].offset + (*spans)[i - 1].nbytes > (*spans)[i].offset) return i;
  }
  return 0;
}

// Cuts the spans at multiples of kSpan of the file, so that two threads rarely fault the same huge page.
inline std::vector<Span> cut(const std::vector<Span> &spans) {
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

inline int write_span(int fd, const Span &span) {
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
inline int copy_parts(const std::vector<Span> &parts, int threads, char *base, int fd) {
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

inline int thread_count(int wanted, const std::vector<Span> &spans) {
  if (wanted == 0) wanted = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4);
  size_t total = 0;
  for (const Span &span : spans) total += span.nbytes;
  return static_cast<int>(std::min<size_t>(static_cast<size_t>(std::min(wanted, kMaxThreads)), total / kSpan + 1));
}
