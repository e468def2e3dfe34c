// SPDX-License-Identifier: Apache-2.0
#include <stagger/plan/predict.hpp>

#include <vector>

#include <stagger/cluster/presets.hpp>
#include <stagger/plan/auto.hpp>
#include <stagger/plan/dapple.hpp>

#include "catch.hpp"
#include "dapple_models.hpp"

namespace predict_test {

using namespace stagger;
using namespace stagger::plan;

TEST_CASE("plan/predict: a plan that was just made is predicted as when it was made", "[plan]") {
  for (char const* preset : {"dapple-a:2x4", "dapple-c:4", "dapple-b:5"})
    for (int const batch : {16, 37, 64})
      for (bool const recompute : {false, true}) {
        CAPTURE(preset, batch, recompute);
        Workload const w(dapple_models::bert(), cluster::preset(preset),
                         {.batch = batch, .recompute = recompute});
        Plan const made = Dapple{.budget = 20'000}.plan(w);
        Plan blank{.microbatches = made.microbatches,
                   .recompute = made.recompute,
                   .gradients = made.gradients};
        for (auto const& s : made.stages)
          blank.stages.push_back(
              {.first = s.first, .last = s.last, .devices = s.devices, .warm_up = s.warm_up});
        Plan const again = predict(w, blank);
        CHECK(again == made);
        CHECK(again.simulated_s == made.simulated_s);
        CHECK(again.latency_s == made.latency_s);
        CHECK(again.lower_bound_s == made.lower_bound_s);
        CHECK(again.speedup == made.speedup);
        CHECK(again.acr == Approx(made.acr));
        for (std::size_t i = 0; i < made.stages.size(); ++i) {
          CHECK(again.stages[i].memory_bytes == made.stages[i].memory_bytes);
          CHECK(again.stages[i].transfer_s == made.stages[i].transfer_s);
          CHECK(again.stages[i].limit == made.stages[i].limit);
        }
      }
}

TEST_CASE("plan/predict: another profile, other microbatches and another warm-up change the times",
          "[plan]") {
  Workload const w(dapple_models::bert(), cluster::preset("dapple-c:4"), {.batch = 32});
  Plan const made = Straight{}.plan(w);
  auto slow = dapple_models::bert();
  for (auto& layer : slow.layers) layer.forward_s *= 2, layer.backward_s *= 2;
  Plan const slower = predict({slow, w.cluster(), w.request()}, made);
  CHECK(slower == made);
  CHECK(slower.simulated_s > 1.5 * made.simulated_s);
  CHECK(slower.simulated_s < 2 * made.simulated_s);  // transfers take no longer
  Plan shallow = made;
  for (auto& s : shallow.stages) s.warm_up = 1;
  CHECK(predict(w, shallow).simulated_s > 1.5 * made.simulated_s);
  Plan whole = made;
  whole.microbatches = 1;
  CHECK(predict(w, whole).simulated_s > 2 * made.simulated_s);
}

TEST_CASE("plan/predict: what the workload does not have is refused", "[plan]") {
  Workload const w(dapple_models::bert(), cluster::preset("dapple-c:4"), {.batch = 32});
  Plan plan = Straight{}.plan(w);
  Plan other = plan;
  other.stages.back().last -= 1;
  CHECK_THROWS_WITH(predict(w, other), Catch::Contains("the stages end before layer"));
  other = plan;
  other.stages.back().devices = {9};
  CHECK_THROWS_WITH(predict(w, other), Catch::Contains("is on device 9"));
  other = plan;
  other.microbatches = 33;
  CHECK_THROWS_WITH(predict(w, other),
                    "a batch of 32 samples cannot be cut into 33 microbatches; "
                    "plan for this batch");
}

}  // namespace predict_test
