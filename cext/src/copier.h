// A copier: a forked process that has the memory of this one as it was at the fork, and copies it into arenas when told.
//
// The kernel keeps what it sees as it was, so the program goes on at once and may change everything. The child of a
// process with threads may call nothing that takes a lock: here are system calls and loops, and what they need was made
// before the fork. (Redis writes its snapshots like this.)
#pragma once

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena.h"
#include "release.h"

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

// What goes into one arena: the spans in the order of their offsets.
struct Image {
  size_t nbytes;
  std::vector<Span> spans;
};

enum Command : uint32_t { kCopyMapped = 1, kCopyWritten = 2, kCompare = 3 };

// Of a request, which carries the descriptor of the arena's file.
struct Request {
  uint32_t command;
  uint32_t arena;
};

constexpr size_t kCompared = size_t{256} << 10;  // at once: little enough to stay in the processor's cache
constexpr size_t kLooks = 16;                    // spans between two looks whether the other side is still there
constexpr int kNiceness = 10;                    // the program's own work goes first

// True when the program is gone, or does not want this any more.
inline bool gone(int sock) {
  char byte;
  return recv(sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// Both return the bytes that were done, or a negative errno.
inline int64_t copy_image(const Image &image, int fd, bool mapped, int sock) {
  if (const Failure failure = check_size(fd, image.nbytes)) return failure.error != 0 ? -failure.error : -EFBIG;
  void *base = nullptr;
  if (mapped) {
    if (const Failure failure = map_aligned(image.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, &base)) {
      return -failure.error;
    }
  }
  int error = 0;
  size_t looked = 0;
  for (const Span &span : image.spans) {
    for (size_t done = 0; done < span.nbytes && error == 0;) {
      const size_t n = std::min(span.nbytes - done, kSpan);
      if (base) {
        std::memcpy(static_cast<char *>(base) + span.offset + done, span.from + done, n);
      } else {
        error = write_span(fd, {span.offset + done, span.from + done, n});
      }
      done += n;
      if (++looked % kLooks == 0 && gone(sock)) _exit(0);
    }
  }
  if (base) munmap(base, image.nbytes);
  return error != 0 ? -error : static_cast<int64_t>(image.nbytes);
}

// How many bytes of the file agree with the image, from its start. Padding between spans is not compared.
inline int64_t compare_image(const Image &image, int fd, char *buffer, int sock) {
  size_t looked = 0;
  for (const Span &span : image.spans) {
    for (size_t done = 0; done < span.nbytes;) {
      const size_t n = std::min(span.nbytes - done, kCompared);
      const size_t at = span.offset + done;
      if (pread(fd, buffer, n, static_cast<off_t>(at)) != static_cast<ssize_t>(n)) return static_cast<int64_t>(at);
      if (std::memcmp(buffer, span.from + done, n) != 0) {
        const char *first = std::mismatch(buffer, buffer + n, span.from + done).first;
        return static_cast<int64_t>(at + static_cast<size_t>(first - buffer));
      }
      done += n;
      if (sock >= 0 && ++looked % (kLooks * kLooks) == 0 && gone(sock)) _exit(0);
    }
  }
  return static_cast<int64_t>(image.nbytes);
}

// A request with its descriptor; false when there is none to come.
inline bool receive(int sock, Request *request, int *fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec data{request, sizeof *request};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr *header = CMSG_FIRSTHDR(&message);
  if (n != static_cast<ssize_t>(sizeof *request) || !header || header->cmsg_type != SCM_RIGHTS) return false;
  std::memcpy(fd, CMSG_DATA(header), sizeof *fd);
  return true;
}

inline bool reply(int sock, int64_t value) {
  return send(sock, &value, sizeof value, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value);
}

// Nothing of the program's may stay open because of this process, and it dies before the program where memory is short.
inline bool settle(int sock) {
  if ((sock > 0 && syscall(SYS_close_range, 0u, static_cast<unsigned>(sock) - 1, 0u) != 0) ||
      syscall(SYS_close_range, static_cast<unsigned>(sock) + 1, ~0u, 0u) != 0) {
    return false;
  }
  const int first = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (first >= 0) {
    const ssize_t ignored = write(first, "1000", 4);
    static_cast<void>(ignored);
    close(first);
  }
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_NAME, "overmind-fill");
  return true;
}

// What the copier reads, besides its stack.
inline std::vector<Range> needed_by(const std::vector<Image> &images, const char *buffer) {
  std::vector<Range> found{around(buffer, kCompared), around(images.data(), images.size() * sizeof images[0])};
  for (const Image &image : images) {
    found.push_back(around(image.spans.data(), image.spans.size() * sizeof(Span)));
    for (const Span &span : image.spans) found.push_back(around(span.from, span.nbytes));
  }
  std::vector<Range> out = merged(std::move(found));
  out.reserve(out.size() + 1);  // its own place, which does not change any more
  out.push_back(around(out.data(), out.capacity() * sizeof out[0]));
  return merged(std::move(out));
}

// The life of the copier: says 0 when it is ready, and answers until the other end of the socket is closed.
[[noreturn]] inline void serve(int sock, const std::vector<Image> &images, const std::vector<Range> &needed,
                               char *buffer) {
  if (!settle(sock)) _exit(1);
  // While the program waits, which would be given a copy of each page that it writes to meanwhile.
  release_but(needed, buffer, kCompared);
  setpriority(PRIO_PROCESS, 0, kNiceness);
  if (!reply(sock, 0)) _exit(1);
  Request request;
  int fd;
  while (receive(sock, &request, &fd)) {
    int64_t value = -EINVAL;
    if (request.arena < images.size()) {
      const Image &image = images[request.arena];
      if (request.command == kCopyMapped || request.command == kCopyWritten) {
        value = copy_image(image, fd, request.command == kCopyMapped, sock);
      } else if (request.command == kCompare) {
        value = compare_image(image, fd, buffer, sock);
      }
    }
    close(fd);
    if (!reply(sock, value)) _exit(1);
  }
  _exit(0);
}

// A pidfd of the new process; only waitid with __WALL sees that one end, so no wait of the program's meets it.
inline Failure start(int sock, const std::vector<Image> &images, char *buffer, int *pidfd) {
  const std::vector<Range> needed = needed_by(images, buffer);
  sigset_t all, before;
  sigfillset(&all);
  // The program's handlers write to its descriptors, and Ctrl-C reaches the whole group of a terminal.
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const long pid = syscall(SYS_clone, static_cast<unsigned long>(CLONE_PIDFD), 0ul, pidfd, 0ul, 0ul);
  const int error = errno;
  if (pid == 0) serve(sock, images, needed, buffer);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return {error, "clone", false, 0};
  return {};
}
