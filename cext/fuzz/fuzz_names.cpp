// Fuzz target for the names of arenas in a manifest (src/opening.h), made for libFuzzer as fuzz_arena is: what it gives are
// names of files in one folder, and lie in the manifest.

#include <string>
#include <vector>

#include "../src/opening.h"
#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  // A copy of its own, so that the sanitizer sees every byte that is read past the end.
  const std::string manifest(reinterpret_cast<const char *>(data), size);
  std::vector<std::string> names;
  const bool whole = arena_names(manifest.data(), manifest.size(), &names);
  size_t together = 0;
  for (const std::string &name : names) {
    check(!name.empty() && name != "." && name != "..", "a name of a folder");
    check(name.find('/') == name.npos && name.find('\0') == name.npos, "a name that leads elsewhere");
    check(manifest.find(name) != manifest.npos, "a name from elsewhere");
    together += name.size();
  }
  check(together <= size, "names longer than the manifest");
  std::vector<std::string> again;
  check(arena_names(manifest.data(), manifest.size(), &again) == whole && again == names, "another answer");
  return 0;
}
