// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   An optimizer whose state is shared out to the replicas: each updates one slice.
/// @source S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, "ZeRO: Memory Optimizations Toward Training
///         Trillion Parameter Models", SC 2020, section 5.1 (optimizer state partitioning).

#include <chrono>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <stagger/collective/communicator.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/text.hpp>

namespace stagger::collective {

/// What one replica does with its slice of a group of parameters.
template <class T> struct OwnShard {
  std::size_t group = 0;         ///< in the order of add()
  Slice slice{};                 ///< of the group, in elements
  std::span<T const> gradients;  ///< of the slice, summed over the replicas in rank order
  std::span<T> parameters;       ///< of the slice
};

/// One step of an optimizer whose state lies in slices on the replicas; models
/// collective::Operation.
///
/// Replica r keeps the state of slice(n, r, replicas) of each group of n parameters: 1 / replicas
/// of it. Every replica adds the same groups in the same order while the backward pass still runs;
/// each add() starts the reduce-scatter of the group's gradients. After seal(), once every sum is
/// there, `step(OwnShard)` is called for each group, and the new parameters are gathered. The bytes
/// are those of an all-reduce, and so are the bits: a step that works element by element gives the
/// parameters that every replica would have computed for itself.
///
/// An error before the sums are all there leaves every parameter as it was. An error of the gather
/// may leave slices of other replicas old: read no parameters then, but a checkpoint.
/// The communicator carries no other collective between the first add() and the end. Nothing is
/// allocated from the second step on.
template <Communicator C, Number T, class Step> class ShardedUpdate {
 public:
  /// @param  communicator  of the replicas; outlives this
  /// @param  step          callable with OwnShard<T>
  ShardedUpdate(C& communicator, Step step) : communicator_(communicator), step_(std::move(step)) {}

  /// Starts a group. Both spans stay untouched by the caller until the step is done; gradients are
  /// spoilt.
  /// @throws Error  Errc::mismatch for spans of different lengths, before anything is sent;
  ///                Errc::bad_configuration after seal()
  void add(std::span<T> gradients, std::span<T> parameters) {
    if (gradients.size() != parameters.size()) {
      throw Error(Errc::mismatch, text("a group has ", gradients.size(), " gradients and ",
                                       parameters.size(), " parameters; give one of each"));
    }
    if (sealed_) {
      throw Error(Errc::bad_configuration,
                  "a group is added after seal(); seal the step when its last group is there");
    }
    if (used_ == groups_.size()) groups_.emplace_back();
    Group& g = groups_[used_++];
    g.gradients = gradients;
    g.parameters = parameters;
    g.operation = communicator_.reduce_scatter(gradients, Reduction::sum);
    g.done = false;
  }

  /// Says that all groups are there.
  void seal() noexcept { sealed_ = true; }

  /// Makes progress without blocking. After the end, groups of the next step may be added.
  /// @return  whether all parameters are new; true where no step is under way
  /// @throws Error  as operations do, and what `step` throws
  bool poll() {
    if (used_ == 0) {
      sealed_ = false;
      return true;
    }
    if (!all_done()) return false;
    if (!sealed_) return false;
    if (!gathering_) {
      for (std::size_t i = 0; i < used_; ++i) update(i);
      gathering_ = true;
      for (std::size_t i = 0; i < used_; ++i) {
        groups_[i].operation = communicator_.all_gather(groups_[i].parameters);
        groups_[i].done = false;
      }
      if (!all_done()) return false;
    }
    for (std::size_t i = 0; i < used_; ++i) groups_[i].operation = {};
    used_ = 0;
    sealed_ = gathering_ = false;
    return true;
  }

  void wait(double seconds) {
    auto const start = std::chrono::steady_clock::now();
    for (Backoff backoff; !poll(); backoff.pause()) {
      auto const waited = std::chrono::steady_clock::now() - start;
      if (std::chrono::duration<double>(waited).count() >= seconds) expire(seconds);
    }
  }
  void expire(double seconds) const {
    for (std::size_t i = 0; i < used_; ++i) {
      if (!groups_[i].done) return groups_[i].operation.expire(seconds);
    }
    if (used_ != 0 && !sealed_) {
      throw Error(Errc::deadline, text("a sharded update is not sealed after ", seconds,
                                       " s; call seal() when the last group is there"));
    }
  }

 private:
  struct Group {
    std::span<T> gradients{};
    std::span<T> parameters{};
    typename C::operation_type operation{};
    bool done = true;
  };

  [[nodiscard]] bool all_done() {
    bool all = true;
    for (std::size_t i = 0; i < used_; ++i) {
      Group& g = groups_[i];
      if (!g.done) g.done = g.operation.poll();
      all = all && g.done;
    }
    return all;
  }
  void update(std::size_t i) {
    Group& g = groups_[i];
    Slice const s = slice(g.parameters.size(), communicator_.rank(), communicator_.size());
    step_(OwnShard<T>{i, s, g.gradients.subspan(s.first, s.size()),
                      g.parameters.subspan(s.first, s.size())});
  }

  C& communicator_;
  Step step_;
  std::vector<Group> groups_{};
  std::size_t used_ = 0;
  bool sealed_ = false;
  bool gathering_ = false;
};

}  // namespace stagger::collective
