// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Steps whose batch is a temporary.

#include <concepts>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <stagger/core/stop_token.hpp>
#include <stagger/engine/step.hpp>
#include <stagger/train/detail/not_a_batch.hpp>

namespace stagger::detail {

/// The functions of a trainer that take a batch, for batches that are temporaries, or moved: the
/// step keeps them, and the trainer the last one, in whose place it puts the next one.
template <class Train, class In, class Out, class Target> class KeptBatches {
 public:
  Step step(Batch<In, Target>&& batch, stagger::stop_token stop = {}) {
    auto kept = keep(std::move(batch));
    return self().step(*kept, std::move(stop)).keep(kept);
  }
  Step stream(Batch<In, Target>&& batch, stagger::stop_token stop = {}) {
    auto kept = keep(std::move(batch));
    return self().stream(*kept, std::move(stop)).keep(kept);
  }
  Step evaluate(Batch<In, Target>&& batch, stagger::stop_token stop = {}) {
    auto kept = keep(std::move(batch));
    return self().evaluate(*kept, std::move(stop)).keep(kept);
  }
  // What is const cannot be moved from: the step keeps a copy.
  Step step(Batch<In, Target> const&& batch, stagger::stop_token stop = {}) {
    return step(Batch<In, Target>(batch), std::move(stop));
  }
  Step stream(Batch<In, Target> const&& batch, stagger::stop_token stop = {}) {
    return stream(Batch<In, Target>(batch), std::move(stop));
  }
  Step evaluate(Batch<In, Target> const&& batch, stagger::stop_token stop = {}) {
    return evaluate(Batch<In, Target>(batch), std::move(stop));
  }
  /// Of inputs that are const, or neither in a vector nor a view, the step keeps a copy.
  template <class X, class Y>
    requires(Spans<X const, In const> && Receives<Y, Out> && !std::is_lvalue_reference_v<X> &&
             !std::ranges::enable_borrowed_range<X>)
  Step predict(X&& inputs, Y&& outputs, stagger::stop_token stop = {}) {
    Batch<In, Target> batch;
    if constexpr (std::same_as<X, std::vector<In>>) {
      batch.inputs = std::forward<X>(inputs);
    } else {
      std::span<In const> const given(inputs);
      batch.inputs.assign(given.begin(), given.end());
    }
    auto kept = keep(std::move(batch));
    return self().predict(kept->inputs, outputs, std::move(stop)).keep(kept);
  }

 private:
  [[nodiscard]] Train& self() noexcept { return static_cast<Train&>(*this); }

  /// Moves a batch to a place of its own, where it stays as long as its step is kept. Without a
  /// step that still has the last one, its place is used again, so that nothing is allocated.
  [[gnu::cold]] std::shared_ptr<Batch<In, Target>> keep(Batch<In, Target>&& batch) {
    auto const held = self().hold();
    if (last_.use_count() != 1) last_ = std::make_shared<Batch<In, Target>>();
    *last_ = std::move(batch);
    return last_;
  }

  std::shared_ptr<Batch<In, Target>> last_{};
};

}  // namespace stagger::detail
