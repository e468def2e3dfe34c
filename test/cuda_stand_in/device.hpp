// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The stand-in's own state, shared by its two halves.

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include "stand_in.hpp"

namespace cuda_stand_in {

/// Something that happens once. Threads wait for it.
class Moment {
 public:
  void set() noexcept {
    when = std::chrono::steady_clock::now();
    happened_.store(true, std::memory_order_release);
    happened_.notify_all();
  }
  void wait() const noexcept { happened_.wait(false, std::memory_order_acquire); }
  /// Only an answer of true orders anything: a look that sees nothing must hide no race.
  [[nodiscard]] bool happened() const noexcept {
    return happened_.load(std::memory_order_relaxed) && happened_.load(std::memory_order_acquire);
  }

  std::chrono::steady_clock::time_point when{};

 private:
  std::atomic<bool> happened_{false};
};

using Work = std::function<void()>;
enum class Kind : std::uint8_t { host, kernel, copy, set, allocate, free, nccl };

struct Node {
  Kind kind;
  Work work;
  std::vector<std::size_t> after;  // indices
  int device;
};

/// Memory of allocation nodes: it is the graph's, at the same address in every launch.
struct GraphMemory {
  struct Block {
    void* data;
    bool freed = false;  // by a node of the same graph
    bool taken = false;  // by a launch, and not given back since
  };
  GraphMemory() = default;
  GraphMemory(GraphMemory const&) = delete;
  GraphMemory& operator=(GraphMemory const&) = delete;
  ~GraphMemory();
  /// Null: not of this graph.
  [[nodiscard]] Block* find(void const* data);

  std::mutex mutex;
  std::vector<Block> blocks;
};

/// A capture that is going on. One thread at a time works on it: CUDA does not lock its graph.
struct Capture {
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  std::vector<Node> nodes;
  std::vector<cudaStream_t> joined;
  std::shared_ptr<GraphMemory> memory = std::make_shared<GraphMemory>();
  bool broken = false;
  bool ended = false;
  std::atomic<bool> in_use{false};  // by a thread of NCCL's, as far as the caller may know
  std::mutex mutex;                 // so that a misuse ends in words
};

struct State {
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Call::count)> calls{};
  std::atomic<int> fail_call{-1};
  std::atomic<int> fail_in{0};
  std::atomic<int> fail_code{0};
  std::atomic<int> lost{0};
  std::atomic<unsigned> jitter{0};
  std::atomic<int> devices{4};
  std::atomic<std::uint64_t> memory_bytes{std::uint64_t{1} << 30U};
  std::atomic<int> driver{13000};
  std::atomic<bool> peers{true};
  std::atomic<int> in_progress_polls{0};
  std::atomic<int> nccl_version{0};
  std::atomic<bool> abort_hangs{false};
  std::atomic<int> abort_takes_ms{0};
  std::atomic<int> aborting{0};          // calls that have not returned
  std::atomic<std::uint64_t> aborts{0};  // of communicators without an error
  std::atomic<std::int64_t> streams{0}, events{0}, pools{0}, graphs{0}, communicators{0},
      allocations{0}, bytes{0};
  std::atomic<std::int64_t> left_bytes{0};  // by earlier tests, on purpose: a device that hung
  std::atomic<int> global_captures{0};
  std::mutex retired_mutex;
  std::vector<cudaStream_t> living;   // streams
  std::vector<cudaStream_t> retired;  // destroyed streams; their handles stay known until a reset
  std::mutex misuse_mutex;
  std::vector<std::string> misuses;
};
State& state();

/// Counts a call. @return 0, or what it must answer
int count(Call call);

/// Notes what CUDA and NCCL leave undefined.
void misuse(char const* words);
/// Ends the process with `exit_code_of_misuse` if it is ending already.
void refuse_at_exit(char const* call);

/// Marks the calling thread as one of NCCL's, which may work on a capture that is in use.
extern thread_local bool thread_of_nccl;

/// Waits for a state that other threads bring about. It looks once in a millisecond, since a lock that
/// is shared with those threads would hide races of the code under test.
/// @return whether the state came within so many seconds
template <class Reached> bool wait_until(Reached reached, double seconds) {
  auto const start = std::chrono::steady_clock::now();
  while (!reached()) {
    if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(seconds))
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Puts work on a stream, or into the graph that it is being captured into.
cudaError_t enqueue(cudaStream_t stream, Kind kind, Work work);

[[nodiscard]] bool alive(cudaStream_t stream);
[[nodiscard]] int current_device();
/// Waits for communicators that are being given up.
void nccl_settle();
/// Forgets those that are gone. No stream may still work for one.
void nccl_reset();

}  // namespace cuda_stand_in

/// A queue with many producers and one consumer. Nothing that the consumer does is visible to a
/// producer until it asks for it: a lock shared by both would hide races of the code under test.
struct CUstream_st {
  struct Item {
    cuda_stand_in::Work work;  // empty: the end
    bool always = false;       // also once the device is lost
    std::atomic<Item*> next{nullptr};
  };
  std::atomic<bool> alive{true};
  int device = 0;
  int priority = 0;
  std::mutex producers;
  Item* last = nullptr;
  bool ended = false;  // the end has been pushed
  std::atomic<std::uint64_t> pushed{0};
  std::atomic<std::uint64_t> done{0};
  std::thread worker;
  std::shared_ptr<cuda_stand_in::Capture> capture;
  std::vector<std::size_t> frontier;  // of the capture: what the next node comes after

  void push(cuda_stand_in::Work work, bool always = false);
  void run(Item* first);
};

struct CUevent_st {
  std::atomic<bool> alive{true};
  int device = 0;
  bool timed = false;
  std::mutex mutex;
  std::shared_ptr<cuda_stand_in::Moment> recorded;  // null: never
  std::shared_ptr<cuda_stand_in::Capture> capture;  // of the last record, if that was captured
  std::vector<std::size_t> frontier;
};
