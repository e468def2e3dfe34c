// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Iterations over several GPUs as CUDA graphs.

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <stagger/cuda/detail/iteration.hpp>
#include <stagger/cuda/graph.hpp>
#include <stagger/nccl/detail/any_rank_flag.hpp>
#include <stagger/nccl/detail/links.hpp>

namespace stagger::nccl::detail {

/// One graph for each turn, over all GPUs of this process: the streams of the others belong to the
/// capture of the first one's. A graph of each GPU would be as right to NCCL, but launching them is
/// several calls: one may block until the next is made, or be refused when others have begun.
class GraphCache {
 public:
  GraphCache(GpuSet& gpu_set, Links& links, std::size_t turns, cuda::GraphCounts* counts)
      : gpu_set_(gpu_set), links_(links), turns_(turns), counts_(counts ? counts : &own_counts_) {}

  [[nodiscard]] cuda::GraphCounts& counts() const noexcept { return *counts_; }
  /// Nothing that was recorded counts any more.
  void forget() noexcept {
    for (auto& turn : turns_) turn.current = false;
  }

  /// An iteration goes on behind the last one. Within a GPU it does so by itself; a graph, though,
  /// begins and ends on the first of them.
  void follow(bool replays) {
    if (last_ == Links::none || last_replayed_ == replays) return;
    for (std::size_t g = 1; g < gpu_set_.size(); ++g)
      if (replays)
        gpu_set_[0].home.wait(links_.end_of(last_, g));
      else
        gpu_set_[g].home.wait(links_.end_of(last_, 0));
  }
  /// Which iteration was the last; none: all that were have ended.
  void went(std::size_t turn, bool replayed) noexcept {
    last_ = turn;
    last_replayed_ = replayed;
  }

  /// Whether the processes can be asked; else `meet` them first.
  [[nodiscard]] bool met() const noexcept { return gpu_set_.alone() || any_rank_flag_.has_value(); }
  /// @pre  no step is in flight
  [[gnu::cold]] void meet(double meet_s) { any_rank_flag_.emplace(gpu_set_, meet_s); }

  /// Whether an iteration must be recorded, since the batch is another than the graph was made for,
  /// here or in another process.
  [[nodiscard]] bool stale(std::size_t number, stagger::detail::StepArguments const& arguments,
                           std::size_t microbatches, double seconds) {
    Turn const& turn = turns_[number];
    bool const own = !turn.current || !turn.shown.same(arguments, microbatches);
    return gpu_set_.alone() ? own : any_rank_flag_->any(own, seconds);
  }

  /// Records what `body()` enqueues on the streams of all GPUs.
  /// @throws Error  what CUDA and NCCL refused; what `body` throws
  template <class Body>
  [[gnu::cold]] void record(std::size_t number, stagger::detail::StepArguments const& arguments,
                            std::size_t microbatches, Body body) {
    struct Capturing {
      explicit Capturing(GpuSet& of) : gpu_set(of) { gpu_set.capturing(true); }
      Capturing(Capturing const&) = delete;
      Capturing& operator=(Capturing const&) = delete;
      ~Capturing() { gpu_set.capturing(false); }
      GpuSet& gpu_set;
    } const capturing(gpu_set_);
    Turn& turn = turns_[number];
    turn.current = false;
    links_.use(0);
    turn.graph.capture(gpu_set_[0].home, *counts_, [&] {
      gpu_set_[0].home.record(links_.end_of(number, 0));
      for (std::size_t g = 1; g < gpu_set_.size(); ++g)
        gpu_set_[g].home.wait(links_.end_of(number, 0));
      body();
      for (std::size_t g = 1; g < gpu_set_.size(); ++g) {
        gpu_set_[g].home.record(links_.end_of(number, g));
        gpu_set_[0].home.wait(links_.end_of(number, g));
      }
    });
    turn.shown.remember(arguments, microbatches);
    turn.current = true;
  }

  void replay(std::size_t number) {
    links_.use(0);
    turns_[number].graph.replay(gpu_set_[0].home, *counts_);
  }

  /// Ends what the processes say to each other. @return whether nothing of it is left
  [[nodiscard]] [[gnu::cold]] bool idle() const {
    return !any_rank_flag_ || any_rank_flag_->idle();
  }
  [[gnu::cold]] void abort(char const* reason) {
    if (any_rank_flag_) any_rank_flag_->abort(reason);
  }
  /// NCCL keeps what graphs refer to until they are gone.
  [[gnu::cold]] void drop() noexcept {
    for (auto& turn : turns_) turn = Turn();
  }

 private:
  struct Turn {
    cuda::Graph graph;
    cuda::detail::Shown shown;  // what it was recorded with
    bool current = false;
  };

  GpuSet& gpu_set_;
  Links& links_;
  std::vector<Turn> turns_;
  cuda::GraphCounts own_counts_;
  cuda::GraphCounts* counts_;
  std::optional<AnyRankFlag> any_rank_flag_;
  std::size_t last_ = Links::none;
  bool last_replayed_ = false;
};

}  // namespace stagger::nccl::detail
