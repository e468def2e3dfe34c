// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Iterations as CUDA graphs.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include <stagger/core/fixed_array.hpp>
#include <stagger/cuda/detail/streams.hpp>
#include <stagger/cuda/graph.hpp>

namespace stagger::cuda::detail {

/// The arguments with which a graph was recorded: the objects of a batch, byte by byte, since they
/// contain the addresses that were passed to its kernels, and the weights of its terms.
class RecordedArguments {
 public:
  [[nodiscard]] bool same(stagger::detail::StepArguments const& now, std::size_t count) const {
    std::size_t at = 0;
    bool same = true;
    each(now, count, [&](void const* from, std::size_t bytes) {
      same = same && at + bytes <= bytes_.size() && std::memcmp(&bytes_[at], from, bytes) == 0;
      at += bytes;
    });
    return same && at == bytes_.size();
  }
  [[gnu::cold]] void remember(stagger::detail::StepArguments const& now, std::size_t count) {
    bytes_.clear();
    each(now, count, [&](void const* from, std::size_t bytes) {
      auto const* const first = static_cast<std::byte const*>(from);
      bytes_.insert(bytes_.end(), first, first + bytes);
    });
  }

 private:
  template <class Visit>
  static void each(stagger::detail::StepArguments const& now, std::size_t count, Visit visit) {
    for (auto const* places : {&now.inputs, &now.targets, &now.outputs}) {
      visit(&places->first, sizeof places->first);
      if (places->first != nullptr && count * places->stride != 0)
        visit(places->first, count * places->stride);
    }
    if (now.scales != nullptr) visit(now.scales, count * sizeof(double));
  }
  std::vector<std::byte> bytes_;
};

/// One graph for each iteration in flight, over all GPUs of this process: streams of all GPUs take
/// part in the capture of the first one's. Launching a graph for each GPU would take several calls,
/// of which one may block until the next is made, or be refused when others have begun.
class GraphCache {
 public:
  GraphCache(Streams& streams, int slots, GraphCounts* counts)
      : streams_(streams), cached_(std::max(slots, 0)), counts_(counts ? counts : &own_counts_) {}

  [[nodiscard]] GraphCounts& counts() const noexcept { return *counts_; }
  /// Called when another program is loaded, with other events; all iterations have ended.
  void forget() noexcept {
    for (auto& cached : cached_) cached.current = false;
    last_ = Streams::none;
  }

  /// Orders an iteration after the last one. Within a GPU the stream does so; a graph, however,
  /// begins and ends on the first GPU.
  void follow(bool replays) {
    if (last_ == Streams::none || last_replayed_ == replays) return;
    for (std::size_t g = 1; g < gpus().size(); ++g)
      if (replays)
        streams_.wait(gpus()[0].main_stream, streams_.end_of(last_, g));
      else
        streams_.wait(gpus()[g].main_stream, streams_.end_of(last_, 0));
  }
  /// The last iteration; none if all have ended.
  void went(std::size_t slot, bool replayed) noexcept {
    last_ = slot;
    last_replayed_ = replayed;
  }

  /// Whether an iteration must be recorded, since here or in another process the batch is not the
  /// one that the graph was made for.
  [[nodiscard]] bool stale(std::size_t slot, stagger::detail::StepArguments const& arguments) {
    Cached const& cached = cached_[slot];
    bool const own = !cached.current || !cached.arguments.same(arguments, microbatches());
    return gpus().processes() == nullptr ? own : gpus().processes()->any(own);
  }

  /// Records what `body()` enqueues on the streams of all GPUs.
  /// @throws Error  what CUDA or NCCL refused; what `body` throws
  template <class Body>
  [[gnu::cold]] void record(std::size_t slot, stagger::detail::StepArguments const& arguments,
                            Body body) {
    struct Capturing {
      explicit Capturing(Processes* of) : processes(of) {
        if (processes != nullptr) processes->capturing(true);
      }
      Capturing(Capturing const&) = delete;
      Capturing& operator=(Capturing const&) = delete;
      ~Capturing() {
        if (processes != nullptr) processes->capturing(false);
      }
      Processes* processes;
    } const capturing(gpus().processes());
    Cached& cached = cached_[slot];
    cached.current = false;
    streams_.use(0);
    cached.graph.capture(gpus()[0].main_stream, *counts_, [&] {
      streams_.follow(0);
      body();
      for (std::size_t g = 1; g < gpus().size(); ++g) {
        streams_.record(gpus()[g].main_stream, streams_.end_of(slot, g));
        streams_.wait(gpus()[0].main_stream, streams_.end_of(slot, g));
      }
    });
    cached.arguments.remember(arguments, microbatches());
    cached.current = true;
  }

  void replay(std::size_t slot) {
    streams_.use(0);
    cached_[slot].graph.replay(gpus()[0].main_stream, *counts_);
  }

  /// Destroys all graphs. Until then NCCL keeps the objects that they use.
  [[gnu::cold]] void drop() noexcept {
    for (auto& cached : cached_) cached = Cached();
  }

 private:
  struct Cached {
    Graph graph;
    RecordedArguments arguments;
    bool current = false;
  };

  [[nodiscard]] GpuSet& gpus() const noexcept { return streams_.gpus(); }
  [[nodiscard]] std::size_t microbatches() const noexcept {
    return static_cast<std::size_t>(streams_.machine().program().microbatches);
  }

  Streams& streams_;
  FixedArray<Cached> cached_;  // [slots]
  GraphCounts own_counts_;
  GraphCounts* counts_;
  std::size_t last_ = Streams::none;
  bool last_replayed_ = false;
};

}  // namespace stagger::cuda::detail
