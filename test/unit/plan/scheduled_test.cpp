// SPDX-License-Identifier: Apache-2.0
#include <stagger/plan/scheduled.hpp>

#include <cstdint>

#include <stagger/cluster/presets.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/hanayo.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

#include "catch.hpp"
#include "dapple_models.hpp"

using namespace stagger;
using namespace stagger::plan;

namespace {

Auto const quick{.budget = 50'000, .simulations = 500};

Workload work(std::uint64_t memory = 16'000'000'000) {
  auto cluster = cluster::dapple_b(4);
  for (auto& d : cluster.devices) d.memory_bytes = memory;
  return {dapple_models::bert(24), cluster, {.batch = 16, .microbatch = 2}};
}

}  // namespace

TEST_CASE(
    "plan/Scheduled: a split backward makes plans faster, and all forwards first need more "
    "memory",
    "[plan]") {
  Workload const w = work();
  auto const deep = schedule::OneFOneB{.warmup = schedule::Warmup::deep};
  Plan const plain = Scheduled<schedule::OneFOneB>{.schedule = deep, .search = quick}.plan(w);
  Plan const split = Scheduled<schedule::ZeroBubbleH1>{.search = quick}.plan(w);
  Plan const first = Scheduled<schedule::GPipe>{.search = quick}.plan(w);
  REQUIRE(plain.stages.size() > 1);
  CHECK(split.simulated_s < plain.simulated_s);
  CHECK(first.simulated_s >= plain.simulated_s * (1 - 1e-9));
  CHECK(first.stages.back().memory_bytes > plain.stages.back().memory_bytes);
  CHECK(first.stages.back().warm_up == first.microbatches);
  for (Plan const* p : {&plain, &split, &first}) CHECK(p->lower_bound_s <= p->simulated_s);
}

TEST_CASE("plan/Scheduled: 1F1B's plan takes what early backward takes, while transfers are short",
          "[plan]") {
  Workload const w = work();
  auto const one = schedule::OneFOneB{.warmup = schedule::Warmup::deep};
  Plan const p = Scheduled<schedule::OneFOneB>{.schedule = one, .search = quick}.plan(w);
  Plan const q = quick.plan(w);
  CHECK(p.simulated_s == Approx(q.simulated_s).epsilon(0.01));
}

TEST_CASE("plan/Scheduled: a schedule that takes no candidate is refused", "[plan]") {
  CHECK_THROWS_AS(Scheduled<schedule::Hanayo>{.search = quick}.plan(work()), Error);
}
