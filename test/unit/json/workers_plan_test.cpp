// SPDX-License-Identifier: Apache-2.0
#include <stagger/json/workers_plan.hpp>

#include <algorithm>
#include <string>

#include <stagger/core/error.hpp>
#include <stagger/report/workers_plan.hpp>

#include "catch.hpp"

namespace workers_plan_test {

using namespace stagger;

namespace {

plan::WorkersPlan example() {
  plan::WorkersPlan p{.allocation = placement::HybridDistribution{},
                      .parameters = placement::RoundRobin{},
                      .in_flight = 3,
                      .distance = 1,
                      .batch = 32};
  p.layer_bytes = {4'000'000, 0, 12};
  p.layer_nodes = {0, 1, 0};
  p.links = {
      {.rate = 1e9, .latency_s = 1e-5},
      {.rate = 1e9, .sharing = schedule::Sharing::one_at_a_time, .duplex = schedule::Duplex::half},
      {},
      {.loss = 0.25, .sharing = schedule::Sharing::fifo}};
  p.workers = {{.stages = {{.first = 0,
                            .last = 1,
                            .device = 2,
                            .node = 1,
                            .forward_s = 0.125,
                            .backward_s = 0.25,
                            .transfer_s = 0.003,
                            .busy = 0.9,
                            .memory_bytes = 1e9,
                            .capacity_bytes = 2e9},
                           {.first = 2, .last = 2, .device = 0, .forward_s = 0.1}},
                .waiting = 0.1,
                .idle = 0.05,
                .limiting_device = 2,
                .wanted_bytes = 2.5e9},
               {.stages = {{.first = 0, .last = 2, .device = 1}}}};
  p.samples_per_s = 123.5;
  p.candidates = 9;
  return p;
}

/// The example with a part of its text replaced.
std::string with(std::string const& was, std::string const& is) {
  std::string file = json::write_plan(example());
  auto const at = file.find(was);
  REQUIRE(at != std::string::npos);
  return file.replace(at, was.size(), is);
}

void refused(std::string const& file, char const* words) {
  REQUIRE_THROWS_WITH(json::read_workers_plan(file, "workers.json"),
                      Catch::Contains("workers.json, line ") && Catch::Contains(words));
}

}  // namespace

TEST_CASE("json/workers_plan: what is written is read again", "[json]") {
  auto plan = example();
  for (auto const& allocation : placement::Allocation::all())
    for (auto const& parameters : placement::ParameterPlacement::all()) {
      plan.allocation = allocation;
      plan.parameters = parameters;
      CHECK(json::read_workers_plan(json::write_plan(plan), "x") == plan);
    }
}

TEST_CASE("json/workers_plan: says what is wrong, and where", "[json]") {
  refused(with("\"hd\"", "\"all\""), "allocation is \"all\"; give one of \"np\", \"ed\", \"hd\"");
  refused(with("\"round-robin\"", "\"here\""), "\"round-robin\", \"local\"");
  refused(with("\"in_flight\": 3", "\"in_flight\": 0"), "in_flight is 0");
  refused(with("[0,1,0]", "[0,2,0]"), "layer_nodes[1] is 2");
  refused(with("[0,1,0]", "[0,1]"), "give one for each of 3 layers");
  refused(with("\"first\":2", "\"first\":1"), "layer 2 comes next");
  refused(with("\"device\":0", "\"device\":2"), "used before");
  refused(with("\"duplex\":\"half\"", "\"duplex\":\"both\""), "\"full\", \"half\"");
  refused(with("[4000000,0,12]", "[]"), "layer_bytes is []; give one layer or more");
  refused(with("\"limiting_device\":2", "\"limiting_device\":1"),
          "limiting_device is 1; give the device of one of its stages");
  refused("{}", "allocation");
}

TEST_CASE("json/workers_plan: a line for each stage, and the predictions", "[json]") {
  auto const shown = report::table(example());
  CHECK_THAT(shown, Catch::Contains("hd, parameters round-robin, 3 minibatches of 32 samples"));
  CHECK_THAT(shown, Catch::Contains("123.5 samples/s, the best of 9 plans"));
  CHECK_THAT(shown, Catch::Contains("waiting     10.0 %, 0.0 % of each worker's time"));
  CHECK_THAT(shown, Catch::Contains("idle while waiting  5.0 %, 0.0 % of each worker's time"));
  CHECK_THAT(shown, Catch::Contains("0-1"));
  CHECK_THAT(shown, Catch::EndsWith("worker 0 cannot fill its pipeline: two minibatches in flight "
                                    "need 2.33 GiB, and device 2 has 1.86 GiB\n"));
  CHECK(std::count(shown.begin(), shown.end(), '\n') == 2 + 3 + 1 + 5);
}

}  // namespace workers_plan_test
