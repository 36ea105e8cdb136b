// What a forked process does not need of the memory that it has from the program.
//
// While both have a page, the program gets a copy of it when it writes there: fresh memory, at the worst moment. Once the
// fork has let go, the program has its pages for itself again. Nothing here takes a lock or allocates, see copier.h.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

// Addresses from one up to, but not with, another.
struct Range {
  uintptr_t from, to;
};

constexpr size_t kPage = size_t{64} << 10;  // a multiple of what it is anywhere
constexpr size_t kWorth = size_t{1} << 20;  // bytes; a hole that is smaller is not worth a system call
// Zeroed data of a library may be part of the mapping behind its file.
constexpr size_t kBehindFile = size_t{32} << 20;

inline Range around(const void *start, size_t nbytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(start);
  return {at & ~(kPage - 1), (at + nbytes + kPage - 1) & ~(kPage - 1)};
}

// In order, and no two touch.
inline std::vector<Range> merged(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range &a, const Range &b) { return a.from < b.from; });
  size_t n = 0;
  for (const Range &range : ranges) {
    if (n > 0 && range.from <= ranges[n - 1].to) {
      ranges[n - 1].to = std::max(ranges[n - 1].to, range.to);
    } else {
      ranges[n++] = range;
    }
  }
  ranges.resize(n);
  return ranges;
}

// One line of /proc/self/maps.
struct Mapping {
  Range range;
  bool writable, shared, file;
};

// False for what is no such line.
inline bool parse_mapping(const char *line, const char *end, Mapping *out) {
  const auto number = [&](unsigned base, uintptr_t *value) {
    *value = 0;
    const char *start = line;
    for (; line < end; line++) {
      const unsigned digit = *line >= '0' && *line <= '9' ? static_cast<unsigned>(*line - '0')
                             : *line >= 'a' && *line <= 'f' ? static_cast<unsigned>(*line - 'a') + 10
                                                            : base;
      if (digit >= base) break;
      *value = *value * base + digit;
    }
    return line > start;
  };
  const auto skip = [&](char c) { return line < end && *line++ == c; };
  uintptr_t ignored, inode;
  if (!number(16, &out->range.from) || !skip('-') || !number(16, &out->range.to) || !skip(' ')) return false;
  if (end - line < 5) return false;
  out->writable = line[1] == 'w';
  out->shared = line[3] == 's';
  line += 5;
  if (!number(16, &ignored) || !skip(' ') || !number(16, &ignored) || !skip(':') || !number(16, &ignored)) return false;
  if (!skip(' ') || !number(10, &inode)) return false;
  out->file = inode != 0;
  return true;
}

// Unmaps what of the mapping nobody needs.
inline void release_mapping(const Range &mapping, const std::vector<Range> &needed) {
  uintptr_t at = mapping.from;
  const auto hole = [&](uintptr_t to) {
    if (to > at && to - at >= kWorth) munmap(reinterpret_cast<void *>(at), to - at);
  };
  auto next = std::lower_bound(needed.begin(), needed.end(), mapping.from,
                               [](const Range &range, uintptr_t from) { return range.to <= from; });
  for (; next != needed.end() && next->from < mapping.to; ++next) {
    hole(std::min(next->from, mapping.to));
    at = std::max(at, next->to);
  }
  hole(mapping.to);
}

// Lets go of large private memory but for what is needed, in order and without overlaps, the stack, and the thread's own.
// text is room for a few lines of /proc/self/maps.
inline void release_but(const std::vector<Range> &needed, char *text, size_t room) {
#if !defined(__SANITIZE_ADDRESS__)  // whose shadow of the memory is such memory
  const uintptr_t stack = reinterpret_cast<uintptr_t>(&text), thread = reinterpret_cast<uintptr_t>(&errno);
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return;
  size_t have = 0;
  uintptr_t file_end = 0;  // of the last mapping of a file
  for (;;) {
    const ssize_t n = read(maps, text + have, room - have);
    if (n <= 0) break;
    have += static_cast<size_t>(n);
    const char *line = text, *const end = text + have;
    for (const char *stop; (stop = static_cast<const char *>(memchr(line, '\n', static_cast<size_t>(end - line))));
         line = stop + 1) {
      Mapping m{};
      if (!parse_mapping(line, stop, &m)) continue;
      const auto has = [&](uintptr_t address) { return address >= m.range.from && address < m.range.to; };
      if (m.file) {
        file_end = m.range.to;
      } else if (m.writable && !m.shared && !has(stack) && !has(thread)) {
        if (m.range.from == file_end) m.range.from += std::min(kBehindFile, m.range.to - m.range.from);
        release_mapping(m.range, needed);
      }
    }
    have = static_cast<size_t>(end - line);
    if (have == room) break;  // no line is so long
    memmove(text, line, have);
  }
  close(maps);
#else
  static_cast<void>(needed);
  static_cast<void>(text);
  static_cast<void>(room);
#endif
}
