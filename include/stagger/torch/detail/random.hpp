// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Random numbers of a forward pass, which depend on the step, the microbatch and the layer
///         alone.

#include <cstdint>
#include <mutex>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>

#include <stagger/core/random.hpp>

namespace stagger::torch::detail {

/// The draws of the forward pass that runs on this thread.
struct Draws {
  std::uint64_t seed = 0;
  std::uint64_t count = 0;
  bool in_stage = false;
};
inline Draws& draws_here() {
  thread_local Draws draws;
  return draws;
}

/// A generator of its own for the next draw of this thread's forward pass; none outside of a stage,
/// where libtorch's global one serves.
[[nodiscard]] inline std::optional<at::Generator> next_generator() {
  Draws& draws = draws_here();
  if (!draws.in_stage) return std::nullopt;
  return at::make_generator<at::CPUGeneratorImpl>(random_bits(draws.seed, {draws.count++}));
}

/// Numbers the draws of a forward pass from 0, until it ends.
class NumberedDraws {
 public:
  explicit NumberedDraws(std::uint64_t seed) : before_(draws_here()) {
    draws_here() = {.seed = seed, .count = 0, .in_stage = true};
  }
  NumberedDraws(NumberedDraws const&) = delete;
  NumberedDraws& operator=(NumberedDraws const&) = delete;
  ~NumberedDraws() { draws_here() = before_; }

 private:
  Draws before_;
};

/// Libtorch's global generator with a seed of its own, as it was before when the scope ends. One
/// forward pass at a time holds it.
class SeededGlobally {
 public:
  explicit SeededGlobally(std::uint64_t seed)
      : turn_(turns()),
        generator_(at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator())),
        seed_(seed) {
    std::lock_guard const lock(generator_->mutex_);
    engine_ = generator_->engine();
    single_ = generator_->next_float_normal_sample();
    double_ = generator_->next_double_normal_sample();
    generator_->set_current_seed(seed);
  }
  SeededGlobally(SeededGlobally const&) = delete;
  SeededGlobally& operator=(SeededGlobally const&) = delete;
  ~SeededGlobally() {
    std::lock_guard const lock(generator_->mutex_);
    generator_->set_engine(engine_);
    generator_->set_next_float_normal_sample(single_);
    generator_->set_next_double_normal_sample(double_);
  }

  /// Whether anything was drawn since the seed was set.
  [[nodiscard]] bool was_drawn_from() const {
    std::lock_guard const lock(generator_->mutex_);
    at::mt19937 now = generator_->engine();
    at::mt19937 untouched(seed_);
    return now() != untouched() || now() != untouched();
  }

 private:
  static std::mutex& turns() {
    static std::mutex mutex;
    return mutex;
  }

  std::lock_guard<std::mutex> turn_;
  at::CPUGeneratorImpl* generator_;
  std::uint64_t seed_;
  at::mt19937 engine_;
  std::optional<float> single_;
  std::optional<double> double_;
};

}  // namespace stagger::torch::detail
