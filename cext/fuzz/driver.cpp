// Runs a libFuzzer target where there is no clang: every file of a corpus, then random changes of them, always the same
// ones for a seed, for so many seconds. What makes it fail is left in a file, as by libFuzzer.
//
//   driver [-max_total_time=SECONDS] [-seed=N] FOLDER

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

namespace {

using Bytes = std::vector<uint8_t>;
constexpr size_t kMostBytes = 4096;

const Bytes *running = nullptr;

void keep() {
  if (!running) return;
  const int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  (void)!write(fd, running->data(), running->size());
  close(fd);
  std::fputs("driver: the input is in crash-input\n", stderr);
}

void on_abort(int) {
  keep();
  _exit(1);
}

void run(const Bytes &input) {
  // A block of its own size, so that reading past its end is seen.
  const Bytes exact(input.begin(), input.end());
  running = &exact;
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  running = nullptr;
}

Bytes changed(Bytes input, const std::vector<Bytes> &corpus, std::mt19937_64 &random) {
  static constexpr uint64_t edges[] = {0, 1, 4095, 4096, 1ull << 21, 1ull << 22, 1ull << 31, 1ull << 32, 1ull << 62,
                                       INT64_MAX, 1ull << 63, UINT64_MAX};
  for (size_t n = 1 + random() % 4; n > 0; n--) {
    const size_t at = input.empty() ? 0 : random() % input.size();
    switch (random() % 6) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<uint8_t>(1u << random() % 8);
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<uint8_t>(random());
        break;
      case 2: {  // a number at its limits, or near
        const uint64_t value = edges[random() % std::size(edges)] + random() % 5 - 2;
        const size_t size = std::min<size_t>(size_t{1} << random() % 4, input.size() - at);
        if (!input.empty()) std::memcpy(input.data() + at, &value, size);
        break;
      }
      case 3:
        input.resize(at);
        break;
      case 4: {
        const Bytes &other = corpus[random() % corpus.size()];
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), other.begin(), other.end());
        break;
      }
      default:
        for (size_t more = random() % 32; more > 0; more--) input.push_back(static_cast<uint8_t>(random()));
    }
    if (input.size() > kMostBytes) input.resize(kMostBytes);
  }
  return input;
}

}  // namespace

int main(int argc, char **argv) {
  double seconds = 0;
  unsigned long long seed = 1;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; i++) {
    const std::string argument = argv[i];
    if (argument.rfind("-max_total_time=", 0) == 0) {
      seconds = std::atof(argument.c_str() + 16);
    } else if (argument.rfind("-seed=", 0) == 0) {
      seed = std::strtoull(argument.c_str() + 6, nullptr, 10);
    } else {
      for (const auto &file : std::filesystem::directory_iterator(argument)) {
        std::ifstream stream(file.path(), std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
      }
    }
  }
  if (corpus.empty()) {
    std::fputs("driver: no corpus\n", stderr);
    return 2;
  }
  std::signal(SIGABRT, on_abort);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(keep);
#endif
  for (const Bytes &input : corpus) run(input);
  std::mt19937_64 random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  size_t runs = corpus.size();
  for (; std::chrono::steady_clock::now() < end; runs++) run(changed(corpus[random() % corpus.size()], corpus, random));
  std::printf("driver: %zu runs, no failure\n", runs);
  return 0;
}
