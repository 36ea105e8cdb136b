// Opens an entry of the cache in a thread of its own: a daemon that hangs leaves who touches its files in a call that
// nothing ends. No Python: docs/protocol.md, "Reading", says what is opened and in which order.
#pragma once

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "flat.h"

constexpr size_t kMaxBlob = size_t{1} << 30;
constexpr int kReplacedAtMost = 3;  // times while one reader opens an entry
constexpr size_t kManifestArenas = 8, kArenaName = 0;  // fields of schema/manifest.fbs

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor &&other) noexcept : fd_(other.release()) {}
  Descriptor &operator=(Descriptor &&other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

struct OpenFile {
  Descriptor fd;
  uint32_t uid = 0;
  uint64_t nbytes = 0, inode = 0;
};

struct Asked {
  std::string root, folder;  // folder is below root
  bool hold = false;         // a plain directory: note the use, and lock the folder for as long as it is open
};

struct Opened {
  int64_t device = 0, mtime_ns = 0;  // of the root
  int error = 0;                     // an errno, and the name of what it is about: in the folder, or "" for the folder
  std::string name;
  Descriptor folder;
  std::string manifest, structure;
  uint32_t owner = 0, author = 0;  // of these two
  std::vector<OpenFile> arenas;    // fewer than the manifest has where it cannot be read
};

// The names of the arenas in a manifest whose bytes may be anything. False where they cannot be read, or are none of
// files in one folder; out has some of them then.
inline bool arena_names(const char *data, size_t size, std::vector<std::string> *out) {
  Flat flat(data, size, 1);
  FlatTable manifest, arena;
  size_t at;
  Run arenas, name;
  if (!flat.follow(0, &at) || !manifest.open(&flat, at) || !manifest.place(&flat, kManifestArenas, &at)) return false;
  if (at == 0) return true;
  if (!flat.vector(at, sizeof(uint32_t), &arenas)) return false;
  for (size_t i = 0; i < arenas.count; i++) {
    if (!flat.follow(arenas.at + i * sizeof(uint32_t), &at) || !arena.open(&flat, at) ||
        !arena.place(&flat, kArenaName, &at) || at == 0 || !flat.string(at, &name)) {
      return false;
    }
    std::string text(flat.at(name.at), name.count);
    if (text.empty() || text == "." || text == ".." || text.find('/') != text.npos || text.find('\0') != text.npos) {
      return false;
    }
    out->push_back(std::move(text));
  }
  return true;
}

class Opener {
 public:
  explicit Opener(const Asked &asked) : asked_(asked) {}

  void run(Opened *out) {
    struct stat root;
    if (stat(asked_.root.c_str(), &root) != 0) {
      out->error = errno;
      return;
    }
    out->device = static_cast<int64_t>(root.st_dev);
    out->mtime_ns = root.st_mtim.tv_sec * int64_t{1000000000} + root.st_mtim.tv_nsec;
    const std::string path = asked_.root + "/" + asked_.folder;
    for (int i = 0; i < kReplacedAtMost; i++) {
      forget(out);
      // A plain directory is also locked through it; a daemon need not be asked to open it.
      const int access = asked_.hold ? O_RDONLY : O_PATH;
      out->folder = Descriptor(::open(path.c_str(), access | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (out->folder.get() < 0) {
        out->error = errno;
        return;
      }
      at_ = out->folder.get();
      out->error = files(out);
      // Every file is of the same folder; evicted or replaced in between, it is opened once more.
      if (out->error == 0 || !is_replaced(path.c_str())) return;
    }
    forget(out);
    out->error = ENOENT;
  }

 private:
  static void forget(Opened *out) {
    out->name.clear();
    out->manifest.clear();
    out->structure.clear();
    out->arenas.clear();
  }

  int files(Opened *out) {
    if (asked_.hold) {
      // For gc, which may take the entry all the same if this comes too late: the files are not there any more then.
      flock(at_, LOCK_SH | LOCK_NB);
      futimens(at_, nullptr);
    }
    out->name = "manifest";
    if (const int error = blob("manifest", &out->manifest, &out->owner)) return error;
    std::vector<std::string> names;
    arena_names(out->manifest.data(), out->manifest.size(), &names);
    for (const std::string &name : names) {
      out->name = "tensors/" + name;
      OpenFile arena;
      if (const int error = open(out->name.c_str(), &arena)) return error;
      out->arenas.push_back(std::move(arena));
    }
    out->name = "structure.pkl";
    return blob("structure.pkl", &out->structure, &out->author);
  }

  int open(const char *name, OpenFile *out) {
    out->fd = Descriptor(openat(at_, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (out->fd.get() < 0) return errno;
    uint32_t mode;
    if (!examine(out, &mode)) return errno;
    if (!S_ISREG(mode)) return ENXIO;
    return 0;
  }

  // Not by fstat, if that can be: it also asks for the time of the last access, for which the kernel asks the daemon.
  static bool examine(OpenFile *out, uint32_t *mode) {
    struct statx is;
    if (statx(out->fd.get(), "", AT_EMPTY_PATH, STATX_TYPE | STATX_UID | STATX_SIZE | STATX_INO, &is) == 0) {
      *mode = is.stx_mode;
      out->uid = is.stx_uid;
      out->nbytes = is.stx_size;
      out->inode = is.stx_ino;
      return true;
    }
    struct stat st;
    if ((errno != EPERM && errno != ENOSYS) || fstat(out->fd.get(), &st) != 0) return false;  // a filter of system calls
    *mode = st.st_mode;
    out->uid = st.st_uid;
    out->nbytes = static_cast<uint64_t>(st.st_size);
    out->inode = st.st_ino;
    return true;
  }

  int blob(const char *name, std::string *bytes, uint32_t *uid) {
    OpenFile file;
    if (const int error = open(name, &file)) return error;
    if (file.nbytes > kMaxBlob) return EFBIG;
    *uid = file.uid;
    bytes->resize(file.nbytes);
    size_t have = 0;
    while (have < bytes->size()) {
      const ssize_t n = read(file.fd.get(), bytes->data() + have, bytes->size() - have);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        const int error = errno;
        bytes->clear();
        return error;
      }
      if (n == 0) break;
      have += static_cast<size_t>(n);
    }
    bytes->resize(have);
    return 0;
  }

  // Whether another folder, or none, is at the path now.
  bool is_replaced(const char *path) const {
    struct stat now, opened;
    if (stat(path, &now) != 0) return errno == ENOENT;
    return fstat(at_, &opened) == 0 && (now.st_dev != opened.st_dev || now.st_ino != opened.st_ino);
  }

  const Asked &asked_;
  int at_ = -1;
};

// In this thread, and in those that it starts, for as long as it lives.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  NoSignals(const NoSignals &) = delete;
  NoSignals &operator=(const NoSignals &) = delete;
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// What the thread and who waits for it have in common. Whoever is last to let go of it closes what was opened.
class Opening {
 public:
  explicit Opening(Asked asked) : asked_(std::move(asked)) {}

  // 0, or the errno with which no thread could be made.
  static int start(const std::shared_ptr<Opening> &self) {
    const NoSignals none;  // they are for the threads of the program
    try {
      std::thread([self] { self->run(); }).detach();
    } catch (const std::system_error &e) {
      return e.code().value();
    }
    return 0;
  }

  // Whether it is done, after so long at most.
  bool wait(std::chrono::steady_clock::duration time) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return done_; });
  }

  // Once it is done.
  Opened *found() { return &found_; }

 private:
  void run() {
    try {
      Opener(asked_).run(&found_);
    } catch (const std::bad_alloc &) {
      found_.error = ENOMEM;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    changed_.notify_one();
  }

  const Asked asked_;
  Opened found_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};
