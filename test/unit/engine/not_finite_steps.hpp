// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Steps whose gradients are not finite, between others.

#include "catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include <stagger/core/error.hpp>
#include <stagger/engine/options.hpp>

#include "engine/split_model.hpp"

namespace not_finite_steps {

using namespace split_model;
using sg::NonFinite;

/// The sentence of the error that `body` throws.
template <class Body> std::string failure(Body body, sg::Errc code = sg::Errc::not_finite) {
  try {
    body();
  } catch (sg::Error const& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "";
}

/// A minibatch with one number that is not finite, where backward or forward begins.
template <class T> Batch<T> spoilt(int step, int microbatches, std::size_t size, int which) {
  auto data = batch<T>(step, microbatches, size);
  auto const m = static_cast<std::size_t>(which % microbatches);
  auto& in = which % 2 == 0 ? data.targets[m] : data.inputs[m];
  using Limits = std::numeric_limits<T>;
  in[static_cast<std::size_t>(which) % in.size()] =
      which % 3 == 0 ? Limits::quiet_NaN() : Limits::infinity();
  return data;
}

/// Takes steps whose gradients are finite and steps whose gradients are not, beside a pipeline that
/// sees the former alone.
/// @param more  policies
template <class T, class Device, class... More>
void leave_no_trace(Device const& device, Case const& of, More const&... more) {
  constexpr std::size_t size = 6;
  int which = static_cast<int>(of.pattern) + of.members + 3 * of.groups;
  auto const all_bits = [](auto& train) {
    train.gather_parameters();
    return bits(train);
  };
  for (auto const rule : {NonFinite::fail, NonFinite::skip}) {
    Case with = of;
    with.options.non_finite = rule;
    auto train = pipeline<T>(device, with, more...);
    auto calm = pipeline<T>(device, of, more...);
    for (int step = 0; step < 2; ++step) {
      CHECK(sg::run(train.step(batch<T>(step, of.microbatches, size))).skipped == 0);
      sg::run(calm.step(batch<T>(step, of.microbatches, size)));
      REQUIRE(all_bits(train) == all_bits(calm));
      for (int again = 0; again < 2; ++again) {
        auto const bad = spoilt<T>(step, of.microbatches, size, which++);
        if (rule == NonFinite::skip) {
          auto const metrics = sg::run(train.step(bad));
          CHECK(metrics.skipped == 1);
          CHECK(std::isfinite(metrics.gradient_norm) == !of.options.clip_norm);
        } else {
          auto const words = failure([&] { sg::run(train.step(bad)); });
          CHECK_THAT(words,
                     Catch::Matchers::Contains("is not finite, nor is the loss of microbatch ") &&
                         Catch::Matchers::Contains(", so nothing was updated after step " +
                                                   std::to_string(step + 1) + ":"));
        }
        CHECK(train.steps() == step + 1);
        REQUIRE(all_bits(train) == all_bits(calm));
      }
    }
  }
}

}  // namespace not_finite_steps
