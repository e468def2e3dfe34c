// SPDX-License-Identifier: Apache-2.0
#include <stagger/report/plan.hpp>

#include <cmath>
#include <string>

#include <stagger/cluster/presets.hpp>
#include <stagger/core/error.hpp>

#include "catch.hpp"

namespace plan_test {

using namespace stagger;

namespace {

plan::Plan example() {
  plan::Plan p{.policy = "by hand", .batch = 64, .microbatches = 4};
  p.stages = {{.first = 0, .last = 31, .devices = {0, 1, 2, 5}},
              {.first = 32, .last = 52, .devices = {3}}};
  p.stages[0].warm_up = 3;
  p.stages[0].time = {0.075, 0.125, 0.027};
  p.stages[0].transfer_s = 0.02;
  p.stages[0].memory_bytes = 3 * 1073741824.0;
  p.stages[0].capacity_bytes = 16 * 1073741824.0;
  p.stages[0].limit = plan::Limit::link;
  p.latency_s = 0.84;
  p.simulated_s = 0.85;
  p.lower_bound_s = 0.68;
  p.gap = 0.25;
  p.speedup = 13.1;
  return p;
}

}  // namespace

TEST_CASE("report/plan: a line for each stage, with what limits it", "[report]") {
  std::string const t = report::table(example());
  auto const has = [&](char const* words) { return t.find(words) != std::string::npos; };
  CHECK(has("0-2 5"));
  CHECK(has("3.00 GiB  16.0 GiB  link"));
  CHECK(has("64 samples in 4 microbatches\n"));
  CHECK(has("estimated  840.0 ms"));
  CHECK(has("gap 25.0 %"));
  CHECK(has("speed-up   13.10"));
}

TEST_CASE("report/plan: shares that are no whole samples are said to be rounded up", "[report]") {
  plan::Plan p = example();
  CHECK(report::table(p).find("rounded") == std::string::npos);
  p.batch = 66;
  CHECK_THAT(
      report::table(p),
      Catch::Contains("rounded    a replica of stage 0 has 4.12 samples of a microbatch on "
                      "average; its times are for 5\n") &&
          Catch::Contains("rounded    a replica of stage 1 has 16.50 samples of a microbatch "
                          "on average; its times are for 17\n"));
  p.batch = 72;  // 4.5 and 18
  CHECK(report::table(p).find("stage 1 has") == std::string::npos);
  for (double const share : {0.0, 1.0, 5.0 / 3 * 3, 2.999999999999})
    CHECK(plan::whole_samples(share) == std::ceil(share - 1e-9));
  CHECK(plan::whole_samples(1.0 / 3) == 1);
}

TEST_CASE("report/plan: devices stand in their nodes, with their stage or a point", "[report]") {
  CHECK(report::picture(example(), cluster::dapple_a(2, 4)) ==
        "node 0  V100  0 0 0 1\n"
        "node 1  V100  . 0 . .\n");
  std::string const page = report::picture_svg(example(), cluster::dapple_a(2, 4));
  CHECK(page.find("<svg ") == 0);
  CHECK(page.find("node 1") != std::string::npos);
  CHECK(page.find("stage 1") != std::string::npos);
  CHECK(page.find("32-52") != std::string::npos);
  CHECK(page.find("idle") != std::string::npos);
  std::size_t boxes = 0;
  for (std::size_t at = 0; (at = page.find("<title>device", at)) != std::string::npos; ++at)
    ++boxes;
  CHECK(boxes == 8);
}

TEST_CASE("report/plan: many devices of a node are ranges", "[report]") {
  CHECK(report::picture(example(), cluster::dapple_a(2, 512)) ==
        "node 0  V100  0-2: 0  3: 1  4: .  5: 0  6-511: .\n"
        "node 1  V100  512-1023: .\n");
}

TEST_CASE("report/plan: devices of several kinds in one node stand apart", "[report]") {
  auto c = cluster::dapple_a(1, 6);
  c.devices[4].kind = c.devices[5].kind = "T4";
  CHECK(report::picture(example(), c) ==
        "node 0  V100  0 0 0 1\n"
        "        T4    . 0\n");
}

TEST_CASE("report/plan: a plan for another cluster is refused", "[report]") {
  CHECK_THROWS_AS(report::picture(example(), cluster::dapple_b(4)), Error);
}

}  // namespace plan_test
