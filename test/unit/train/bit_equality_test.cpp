// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"

#include <stagger/schedule/gpipe.hpp>

#include "engine/typed_oracle.hpp"
#include "sweep.hpp"

namespace bit_equality_test {

using namespace small_model;

namespace {

constexpr int steps = sanitized ? 6 : 20;

struct Named {
  std::string name;
  Made schedule;
};

std::vector<Named> schedules() {
  using namespace sg::schedule;
  return {{"gpipe", made(GPipe{})},
          {"1f1b", made(OneFOneB{})},
          {"1f1b deep", made(OneFOneB{.warmup = Warmup::deep})},
          {"1f1b in flight 2", made(OneFOneB{.in_flight = 2})},
          {"gpipe split", split(made(GPipe{}), 3)},
          {"1f1b split", split(made(OneFOneB{}), 0)},
          {"1f1b deep, W late", split(made(OneFOneB{.warmup = Warmup::deep}), 2)}};
}

/// The grid of cases that devices share, of which a sample is taken: calls `body(schedule, stages,
/// batches, course, options)`.
template <class Body> void grid(int sample, Body body) {
  Sweep sweep(4, sample);
  for (int const microbatches : {1, 2, 5, 8}) {
    for (bool const uneven : {false, true}) {
      for (bool const clips : {false, true}) {
        auto const data = batches(steps, microbatches, uneven);
        auto const course = expected_course(data, clips);
        for (auto const& [name, schedule] : schedules()) {
          for (int const stages : {1, 2, 3, 4, 7}) {
            for (bool const recompute : {false, true}) {
              if (!sweep.takes()) continue;
              CAPTURE(name, microbatches, uneven, clips, stages, recompute);
              sg::Options options;
              options.recompute = recompute;
              if (clips) options.clip_norm = clip;
              body(schedule, stages, data, course, options);
            }
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE(
    "train/Trainer: on threads, parameters have the bits of typed loops after each of 20 steps",
    "[train]") {
  auto const threads = GENERATE(1, 2, 4);
  CAPTURE(threads);
  grid(threads, [&](Made const& schedule, int stages, auto const& data, auto const& course,
                    sg::Options const& options) {
    auto train = pipeline(sg::host::Threads{threads}, even_cuts(stages), schedule, options);
    REQUIRE(first_difference(train, data, course) == -1);
  });
}

TEST_CASE("train/Trainer: under the virtual clock, parameters have the bits of typed loops",
          "[train]") {
  grid(0, [&](Made const& schedule, int stages, auto const& data, auto const& course,
              sg::Options const& options) {
    auto train = pipeline(sg::sim::VirtualClock{.jitter = 0.5, .seed = 3}, even_cuts(stages),
                          schedule, options);
    REQUIRE(first_difference(train, data, course) == -1);
  });
}

TEST_CASE("train/Trainer: every cut of the layers gives the same bits", "[train]") {
  auto const data = batches(steps, 4, true);
  auto const course = expected_course(data, true);
  for (unsigned mask = 0; mask < 1U << (layers - 1); ++mask) {
    std::vector<int> cuts;
    for (int l = 1; l < layers; ++l)
      if ((mask >> (l - 1) & 1U) != 0) cuts.push_back(l);
    CAPTURE(mask);
    sg::Options options;
    options.clip_norm = clip;
    for (auto const& [name, schedule] : schedules()) {
      if (sanitized && (mask + name.size()) % 7 != 0) continue;
      CAPTURE(name);
      options.recompute = !options.recompute;
      auto train = pipeline(sg::host::Threads{mask % 3 == 0 ? 2 : 1}, cuts, schedule, options);
      REQUIRE(first_difference(train, data, course) == -1);
    }
  }
}

TEST_CASE("train/OneDevice: the yardstick itself has the bits of typed loops", "[train]") {
  for (bool const uneven : {false, true}) {
    for (bool const clips : {false, true}) {
      auto const data = batches(steps, 5, uneven);
      auto const course = expected_course(data, clips);
      sg::Options options;
      options.seed = run_seed;
      if (clips) options.clip_norm = clip;
      auto one = sg::Pipeline{model()}.on_one_device(Loss{}, optimizer(), options);
      for (std::size_t s = 0; s < data.size(); ++s) {
        auto const metrics = one.step(data[s]);
        REQUIRE(bits(one) == course.bits[s]);
        REQUIRE(metrics.loss == course.loss[s]);
        REQUIRE(metrics.gradient_norm == course.norm[s]);
      }
      // Clipping that never clips, or always does, would prove little.
      if (clips) {
        auto const& norm = course.norm;
        CHECK(std::any_of(norm.begin(), norm.end(), [](double n) { return n > clip; }));
        CHECK(std::any_of(norm.begin(), norm.end(), [](double n) { return n < clip; }));
      }
    }
  }
}

}  // namespace bit_equality_test
