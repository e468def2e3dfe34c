// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Streams, events with and without times, and a table of events, owned. Nothing here waits
///         for the device.

#include <cstddef>
#include <utility>
#include <vector>

#include <stagger/cuda/error.hpp>

namespace stagger::cuda {

/// Owns an event without timing, which is made once and recorded repeatedly.
class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "create an event"); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }

  [[nodiscard]] cudaEvent_t get() const noexcept { return event_; }

  /// Whether the work before the last record is done; true if it was never recorded.
  /// @throws Error the error of the device
  [[nodiscard]] bool done() const {
    cudaError_t const result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) return false;
    check(result, "look at an event");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
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
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       priority == Priority::message ? greatest : least),
          "create a stream");
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream() {  // CUDA frees it once its work is done
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

  void record(Event& event) const {
    check(cudaEventRecord(event.get(), stream_), "record an event");
  }
  void wait(Event const& event) const {
    check(cudaStreamWaitEvent(stream_, event.get(), 0), "let a stream wait for an event");
  }

  /// Whether all of its work is done.
  /// @throws Error the error of the device
  [[nodiscard]] bool idle() const {
    cudaError_t const result = cudaStreamQuery(stream_);
    if (result == cudaErrorNotReady) return false;
    check(result, "carry out the work of a stream");
    return true;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Owns an event with a time.
class TimedEvent {
 public:
  TimedEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDefault), "create an event"); }
  TimedEvent(TimedEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  TimedEvent& operator=(TimedEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~TimedEvent() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  void record(Stream const& stream) const {
    check(cudaEventRecord(event_, stream.get()), "record an event");
  }
  /// @pre  both have happened
  [[nodiscard]] double seconds_since(TimedEvent const& earlier) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, earlier.event_, event_), "read the time between two events");
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Events by number, made before a run and recorded again in each iteration.
class EventTable {
 public:
  /// Makes at least `count` events; none is destroyed before the end.
  [[gnu::cold]] void reserve(std::size_t count) {
    events_.reserve(count);
    while (events_.size() < count) events_.emplace_back();
  }
  [[nodiscard]] Event& operator[](std::size_t i) noexcept { return events_[i]; }
  [[nodiscard]] Event const& operator[](std::size_t i) const noexcept { return events_[i]; }
  [[nodiscard]] std::size_t size() const noexcept { return events_.size(); }

 private:
  std::vector<Event> events_;
};

}  // namespace stagger::cuda
