// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/kernels.hpp>

#include "catch.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/train/profiler.hpp>

#include "enqueued_model.hpp"

namespace gpus_profiler_test {

using namespace enqueued_model;

TEST_CASE("cuda/Profiler: a model is measured by the GPU's own clock, layer by layer", "[cuda]") {
  si::Session const session;
  {
    std::vector<int> each;
    for (int l = 1; l < layers; ++l) each.push_back(l);
    auto train =
        enqueued(on_device(), sg::optimizer::Sgd{}, each,
                 {[](sg::Shape shape) { return sg::schedule::ZeroBubbleH1{}.table(shape); }},
                 {.record = true});
    auto one = sg::Pipeline{model()}.on_one_device(Loss{});
    auto const batch = small_model::batch(0, 4, false);
    sg::Profiler const profiler({.repeats = 3, .samples = 3, .device = "gpu"});
    auto const here = profiler.measure(one, batch.inputs[0], batch.targets[0]);
    auto const there = profiler.measure(train, batch);
    REQUIRE(there.size() == here.size());
    CHECK(there.device == "gpu");
    double sum_s = 0;
    for (std::size_t l = 0; l < there.layers.size(); ++l) {
      CAPTURE(l);
      auto const& layer = there.layers[l];
      CHECK(layer.activation_bytes == here.layers[l].activation_bytes);
      CHECK(layer.stash() == here.layers[l].stash());
      CHECK(layer.parameter_bytes == here.layers[l].parameter_bytes);
      CHECK(std::isfinite(layer.forward_s + layer.backward_s));
      CHECK(layer.backward_s >= layer.backward_weight_s.value_or(0));
      sum_s += layer.forward_s + layer.backward_s;
    }
    CHECK(sum_s > 0);
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

}  // namespace gpus_profiler_test
