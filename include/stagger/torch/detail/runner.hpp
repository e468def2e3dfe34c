// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Calls of a module: mode, random numbers, running statistics, and what libtorch says.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/InferenceMode.h>

#include <stagger/core/error.hpp>
#include <stagger/core/random.hpp>
#include <stagger/model/context.hpp>
#include <stagger/torch/detail/held.hpp>
#include <stagger/torch/detail/random.hpp>
#include <stagger/torch/value.hpp>

namespace stagger::torch::detail {

/// A module that the engine calls.
class Runner {
 public:
  explicit Runner(std::unique_ptr<Held> held)
      : held_(std::move(held)), buffers_(module().buffers()) {
    auto const inner = module().modules(false);
    for (std::size_t i = 0; i < inner.size() && module().is_training(); ++i)
      if (!inner[i]->is_training()) in_eval_.push_back(i);
  }
  Runner(Runner const& other)
      : held_(other.held_->copy()), buffers_(module().buffers()), in_eval_(other.in_eval_) {}
  Runner(Runner&&) noexcept = default;
  Runner& operator=(Runner const& other) { return *this = Runner(other); }
  Runner& operator=(Runner&&) noexcept = default;
  ~Runner() = default;

  [[nodiscard]] Module& module() const { return held_->module(); }

  [[nodiscard]] std::vector<at::Tensor> const& buffers() const noexcept { return buffers_; }
  void set_training(bool training) {
    if (module().is_training() == training) return;
    module().train(training);
    if (!training || in_eval_.empty()) return;
    auto const inner = module().modules(false);
    for (std::size_t const i : in_eval_) inner[i]->train(false);
  }

  /// Calls forward with the random numbers of this action. A repeated one leaves buffers alone.
  at::Tensor run(Context const& context, at::Tensor& in) {
    NumberedDraws const draws(seed_of(context));
    DrawsGlobally& known = draws_[context.training() ? 1 : 0];
    std::vector<at::Tensor> kept;
    if (context.training() && (context.recomputes() || context.profiles()))
      for (at::Tensor const& buffer : buffers_) kept.push_back(buffer.clone());
    at::Tensor out =
        known == DrawsGlobally::no ? held_->forward(in) : run_seeded(context, in, known);
    // Through data(), which leaves the version that backward compares.
    for (std::size_t i = 0; i < kept.size(); ++i) buffers_[i].data().copy_(kept[i]);
    return out;
  }
  /// The module's type and the layer's number.
  [[nodiscard]] [[gnu::cold]] std::string place(Context const& context) const {
    return module().name() + " in layer " + std::to_string(context.layer());
  }
  [[noreturn]] [[gnu::cold]] [[gnu::noinline]] void refuse_in_place(Context const& context) const {
    raise(Errc::bad_data, "forward of ", place(context),
          " changes its input in place, which others still read; use the module without inplace");
  }
  /// Says what libtorch throws in one sentence, with the module's name.
  template <class Call> void guarded(Context const& context, Call call) const {
    try {
      c10::InferenceMode const off(false);  // which the caller of an evaluation may be in
      call();
    } catch (c10::Error const& error) {
      refuse(context, error);
    }
  }

 private:
  enum class DrawsGlobally : std::uint8_t { unknown, yes, no };

  /// Replicas draw other numbers for their rows.
  static std::uint64_t seed_of(Context const& context) {
    std::uint64_t const row = context.first_row();
    return row == 0 ? context.random_seed() : random_bits(context.random_seed(), {row});
  }
  at::Tensor run_seeded(Context const& context, at::Tensor& in, DrawsGlobally& known) {
    SeededGlobally const generator(seed_of(context));
    at::Tensor out = held_->forward(in);
    if (known == DrawsGlobally::unknown && in.numel() != 0)  // nothing is drawn for nothing
      known = generator.was_drawn_from() ? DrawsGlobally::yes : DrawsGlobally::no;
    return out;
  }

  [[noreturn]] [[gnu::cold]] [[gnu::noinline]] void refuse(Context const& context,
                                                           c10::Error const& error) const {
    std::string const said = first_line(error);
    auto const has = [&](char const* word) { return said.find(word) != said.npos; };
    raise(Errc::bad_data, place(context), ": ", said,
          has("in-place") || has("inplace") ? "; use the module without inplace"
          : has("AnyValue")                 ? "; let its forward take one tensor and return one"
                                            : "; give it an input that fits");
  }

  std::unique_ptr<Held> held_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::size_t> in_eval_;      // modules inside that never train
  std::array<DrawsGlobally, 2> draws_{};  // in evaluation, and in training
};

}  // namespace stagger::torch::detail
