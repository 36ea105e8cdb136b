// Faults the pages of mapped arenas in beside the program, in a thread that lives for milliseconds. A huge page takes a
// microsecond to be mapped, so for gigabytes this is done before a program that waits for nobody gets far into them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>

#include <pthread.h>
#include <sys/resource.h>

#include "arena.h"
#include "signals.h"

constexpr size_t kPopulateStep = size_t{16} << 20;  // for which a release may have to wait
constexpr int kPopulateNiceness = 10;               // the program's own work goes first

// Ranges of memory that can be read, taken one after another. None may be unmapped before it was removed.
class Populator {
 public:
  // Of the process; never destroyed, since its thread may run until the end.
  static Populator &one() {
    static const int registered = (only_ = new Populator, pthread_atfork(before_fork, after_fork, after_fork));
    static_cast<void>(registered);  // without handlers, a child that forgets a mapping in the middle of a step may hang
    return *only_;
  }

  void add(void *base, size_t nbytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ranges_.push_back({static_cast<char *>(base), nbytes, 0});
  }

  // Begins with what was added. Without a thread to be had, the pages come when they are used, as always.
  void start() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ranges_.empty() || running_) return;
    join();
    const NoSignals none;  // they are for the threads of the program
    const auto work = [](void *self) -> void * {
      static_cast<Populator *>(self)->run();
      return nullptr;
    };
    running_ = joinable_ = pthread_create(&thread_, nullptr, work, this) == 0;
    if (!running_) ranges_.clear();
  }

  // Waits for a step at most.
  void remove(const void *base) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_it = [base](const Range &range) { return range.base == base; };
    ranges_.erase(std::remove_if(ranges_.begin(), ranges_.end(), is_it), ranges_.end());
    idle_.wait(lock, [this, base] { return busy_ != base; });
  }

 private:
  struct Range {
    char *base;
    size_t nbytes, done;
  };

  // A fork ends it: a child has no such thread, and Python warns of forks with threads that it does not know.
  static void before_fork() {
    std::unique_lock<std::mutex> lock(only_->mutex_);
    only_->ranges_.clear();
    only_->idle_.wait(lock, [] { return !only_->running_; });
    only_->join();
    lock.release();  // until after the fork, in both processes
  }

  static void after_fork() { only_->mutex_.unlock(); }

  void join() {
    if (joinable_) pthread_join(thread_, nullptr);
    joinable_ = false;
  }

  void run() {
    setpriority(PRIO_PROCESS, 0, kPopulateNiceness);  // of this thread, on Linux
    std::unique_lock<std::mutex> lock(mutex_);
    while (!ranges_.empty()) {
      Range range = ranges_.front();
      busy_ = range.base;
      lock.unlock();
      step(&range);
      lock.lock();
      busy_ = nullptr;
      idle_.notify_all();
      if (ranges_.empty() || ranges_.front().base != range.base) continue;
      if (range.done < range.nbytes) {
        ranges_.front() = range;
      } else {
        ranges_.pop_front();
      }
    }
    running_ = false;
    idle_.notify_all();
  }

  // By reading, not by madvise(): a fault takes the lock of its mapping only, and who maps something else meanwhile does
  // not wait. Where the pages are small ones this maps a few of them, in the same time.
  static void step(Range *range) {
    for (size_t end = std::min(range->done + kPopulateStep, range->nbytes); range->done < end;) {
      static_cast<void>(*static_cast<const volatile char *>(range->base + range->done));
      range->done += std::min(kHugePage, end - range->done);
    }
  }

  static inline Populator *only_ = nullptr;

  std::mutex mutex_;
  std::condition_variable idle_;
  std::deque<Range> ranges_;
  const void *busy_ = nullptr;  // what a step is under way in
  bool running_ = false, joinable_ = false;
  pthread_t thread_{};
};
