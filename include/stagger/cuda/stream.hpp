// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Streams, and events with and without times, owned. Nothing here waits for the device.

#include <memory>
#include <type_traits>

#include <stagger/cuda/error.hpp>

namespace stagger::cuda {

namespace detail {

/// Destroys what CUDA has made. CUDA lets work end that still uses a stream, an event or a graph.
struct Destroy {
  void operator()(cudaEvent_t event) const noexcept { static_cast<void>(cudaEventDestroy(event)); }
  void operator()(cudaStream_t stream) const noexcept {
    static_cast<void>(cudaStreamDestroy(stream));
  }
  void operator()(cudaGraph_t graph) const noexcept { static_cast<void>(cudaGraphDestroy(graph)); }
  void operator()(cudaGraphExec_t graph) const noexcept {
    static_cast<void>(cudaGraphExecDestroy(graph));
  }
  void operator()(cudaMemPool_t pool) const noexcept {
    static_cast<void>(cudaMemPoolDestroy(pool));
  }
};
template <class Handle> using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

}  // namespace detail

/// Owns an event without timing, which is made once and recorded repeatedly.
class Event {
 public:
  Event() : Event(cudaEventDisableTiming) {}

  [[nodiscard]] cudaEvent_t get() const noexcept { return event_.get(); }

  /// Whether the work before the last record is done; true if it was never recorded.
  /// @throws Error the error of the device
  [[nodiscard]] bool done() const {
    cudaError_t const result = cudaEventQuery(get());
    if (result == cudaErrorNotReady) return false;
    check(result, "look at an event");
    return true;
  }
  /// Whether it is known to be done: not if it was recorded last in a graph, or if the device has
  /// failed.
  [[nodiscard]] bool known_done() const noexcept {
    if (cudaEventQuery(get()) == cudaSuccess) return true;
    static_cast<void>(cudaGetLastError());
    return false;
  }

 protected:
  explicit Event(unsigned flags) {
    cudaEvent_t made = nullptr;
    check(cudaEventCreateWithFlags(&made, flags), "create an event");
    event_.reset(made);
  }

 private:
  detail::Owned<cudaEvent_t> event_;
};

namespace detail {

/// Whether a stream is being captured into a graph.
[[nodiscard]] [[gnu::cold]] inline bool is_captured(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

/// Set if the calling thread met something that a graph cannot contain, where it could not throw.
inline thread_local bool capture_is_corrupted = false;

}  // namespace detail

/// The purpose of a stream: messages have priority over compute if both are waiting for the device.
enum class Priority : bool { compute, message };

/// Owns a stream of the current device that does not synchronise with the null stream.
class Stream {
 public:
  explicit Stream(Priority priority = Priority::compute) {
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "read the priorities of streams");
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking,
                                       priority == Priority::message ? greatest : least),
          "create a stream");
    stream_.reset(made);
  }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_.get(); }

  void record(Event& event) const { check(cudaEventRecord(event.get(), get()), "record an event"); }
  void wait(Event const& event) const {
    check(cudaStreamWaitEvent(get(), event.get(), 0), "let a stream wait for an event");
  }

  /// Whether all of its work is done.
  /// @throws Error the error of the device
  [[nodiscard]] bool idle() const {
    cudaError_t const result = cudaStreamQuery(get());
    if (result == cudaErrorNotReady) return false;
    check(result, "carry out the work of a stream");
    return true;
  }

 private:
  detail::Owned<cudaStream_t> stream_;
};

/// Owns an event with a time.
class TimedEvent : Event {
 public:
  TimedEvent() : Event(cudaEventDefault) {}
  void record(Stream const& stream) { stream.record(*this); }
  /// @pre  both have happened
  [[nodiscard]] double seconds_since(TimedEvent const& earlier) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, earlier.get(), get()), "read the time between two events");
    return static_cast<double>(ms) * 1e-3;
  }
};

}  // namespace stagger::cuda
