// What the fuzz targets have in common: reading the input, and checks that stop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// What is left of the input, taken from its front; zeros when it is used up.
struct Input {
  const uint8_t *at;
  size_t left;

  template <typename T>
  T take() {
    T value{};
    const size_t n = std::min(left, sizeof value);
    if (n > 0) std::memcpy(&value, at, n);
    at += n;
    left -= n;
    return value;
  }
};

inline void check(bool ok, const char *what) {
  if (ok) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}
