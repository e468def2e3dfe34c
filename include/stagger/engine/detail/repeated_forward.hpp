// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   The check that a repeated forward gives what the first gave.

#include <cstddef>
#include <cstdint>

#include <stagger/core/error.hpp>
#include <stagger/core/fixed_array.hpp>
#include <stagger/engine/layer.hpp>
#include <stagger/model/context.hpp>

namespace stagger::detail {

/// Whether recomputation is compared where Options::check_recompute does not ask for it, as in
/// what CMake's preset `dev` builds.
#ifdef STAGGER_CHECK_RECOMPUTE
inline constexpr bool checks_recompute = true;
#else
inline constexpr bool checks_recompute = false;
#endif

/// Runs in place of a layer, and compares the output of each forward that is repeated with that of
/// the first one, by a digest.
class RepeatedForward {
 public:
  /// @param layer  a LayerRun whose outputs have a digest
  /// @param rank   that runs it
  template <class Run> void replace(Run& layer, int rank, std::size_t microbatches) {
    object_ = layer.object;
    ops_ = layer.ops;
    rank_ = rank;
    if (first_.size() < microbatches) first_ = FixedArray<std::uint64_t>(microbatches);
    own_ = *ops_;
    own_.forward = &RepeatedForward::forward;
    if (own_.backward != nullptr) own_.backward = &RepeatedForward::backward;
    if (own_.backward_input != nullptr) own_.backward_input = &RepeatedForward::backward_input;
    if (own_.backward_weight != nullptr) own_.backward_weight = &RepeatedForward::backward_weight;
    layer.object = this;
    layer.ops = &own_;
  }

 private:
  static RepeatedForward& of(void* self) noexcept { return *static_cast<RepeatedForward*>(self); }
  static void forward(void* self, Context& context, void const* x, void* y, void* saved) {
    of(self).ops_->forward(of(self).object_, context, x, y, saved);
    if (context.training()) of(self).compare(context, y);
  }
  static void backward(void* self, Context& context, void const* x, void const* dy, void* dx,
                       void* saved) {
    of(self).ops_->backward(of(self).object_, context, x, dy, dx, saved);
  }
  static void backward_input(void* self, Context& context, void const* x, void const* dy, void* dx,
                             void* saved) {
    of(self).ops_->backward_input(of(self).object_, context, x, dy, dx, saved);
  }
  static void backward_weight(void* self, Context& context, void const* x, void const* dy,
                              void* saved) {
    of(self).ops_->backward_weight(of(self).object_, context, x, dy, saved);
  }

  void compare(Context const& context, void const* y) {
    std::uint64_t& first = first_[context.microbatch()];
    std::uint64_t const now = ops_->digest(y);
    if (!context.recomputes())
      first = now;
    else if (now != first)
      raise(Errc::mismatch, "forward of layer ", context.layer(), " on rank ", rank_,
            " gave another output for microbatch ", context.microbatch(),
            " when it was repeated (Options::recompute); let it depend on its input, the "
            "parameters and context.random_seed() alone, and change what the stage keeps itself "
            "only where context.recomputes() is false");
  }

  void* object_ = nullptr;  // of the layer
  LayerOps const* ops_ = nullptr;
  int rank_ = 0;
  LayerOps own_{};
  FixedArray<std::uint64_t> first_;  // [microbatches] digest of the first output
};

}  // namespace stagger::detail
