// SPDX-License-Identifier: Apache-2.0
#include <stagger/json/plan.hpp>

#include <string>

#include <stagger/core/error.hpp>

#include "catch.hpp"

namespace plan_test {

using namespace stagger;

namespace {

plan::Plan example() {
  plan::Plan p{.policy = "by hand", .batch = 64, .microbatches = 4};
  p.stages = {{.first = 0, .last = 31, .devices = {0, 1, 2}},
              {.first = 32, .last = 52, .devices = {3}}};
  p.stages[0].warm_up = 3;
  p.stages[0].memory_bytes = 7.1e9;
  p.stages[1].memory_bytes = 4.2e9;
  p.recompute = true;
  p.gradients = plan::Gradients::overlapped;
  p.latency_s = 0.84;
  p.simulated_s = 0.85;
  p.lower_bound_s = 0.7;
  p.gap = p.simulated_s / p.lower_bound_s - 1;
  p.speedup = 13.1;
  p.acr = 0.12;
  p.alpha = 0.24;
  p.candidates = 1000;
  p.solve_s = 0.5;
  return p;
}

void refused(std::string const& file, char const* words) {
  try {
    (void)json::read_plan(file, "plan.json");
  } catch (Error const& error) {
    INFO(error.what());
    CHECK(std::string(error.what()).find("plan.json, line ") == 0);
    CHECK(std::string(error.what()).find(words) != std::string::npos);
    return;
  }
  FAIL("no error: " << file);
}

}  // namespace

TEST_CASE("json/plan: what is written is read back", "[json]") {
  auto const before = example();
  auto const after = json::read_plan(json::write_plan(before), "plan.json");
  CHECK(after == before);
  CHECK(after.policy == before.policy);
  CHECK(after.latency_s == before.latency_s);
  CHECK(after.simulated_s == before.simulated_s);
  CHECK(after.gap == Approx(before.gap));
  CHECK(after.candidates == before.candidates);
  CHECK(after.stages[1].memory_bytes == before.stages[1].memory_bytes);
  CHECK(json::write_plan(after) == json::write_plan(before));
}

TEST_CASE("json/plan: predictions may be missing", "[json]") {
  auto const p = json::read_plan(
      R"({"stages": [{"first": 0, "last": 1, "devices": [2, 1]}], "microbatches": 2, "warmup": [1]})",
      "plan.json");
  CHECK(p.stages[0].devices == std::vector<int>{1, 2});
  CHECK(p.latency_s == 0);
}

TEST_CASE("json/plan: what is no plan is refused by file, line, field and value", "[json]") {
  auto const with = [](std::string const& stages, std::string const& rest) {
    return "{\"stages\": [" + stages + "],\n\"microbatches\": 2" + rest + "}";
  };
  std::string const one = R"({"first": 0, "last": 3, "devices": [0]})";
  std::string const two = one + R"(, {"first": 4, "last": 5, "devices": [1]})";
  refused("{\"stages\": [", "is where the file ends too early");
  refused(with("", ", \"warmup\": []"), "stages is []; give one stage or more");
  refused(with(one, ""), "has no 'warmup'");
  refused(with(one + R"(, {"first": 5, "last": 6, "devices": [1]})", ", \"warmup\": [1, 1]"),
          "stages[1].first is 5; layer 4 comes next");
  refused(with(one + R"(, {"first": 4, "last": 3, "devices": [1]})", ", \"warmup\": [1, 1]"),
          "stages[1].last is 3");
  refused(with(one + R"(, {"first": 4, "last": 6, "devices": [0]})", ", \"warmup\": [1, 1]"),
          "devices[0] is 0, used before");
  refused(with(R"({"first": 0, "last": 3, "devices": []})", ", \"warmup\": [1]"),
          "stages[0].devices is []; give one device or more");
  refused(with(two, ", \"warmup\": [1, 2]"), "warmup[1] is 2, more than the stage before");
  refused(with(two, ", \"warmup\": [1]"), "warmup is [1]; give one for each of 2 stages");
  refused(with(two, ", \"warmup\": [1, 0]"), "warmup[1] is 0");
  refused(with(one, ", \"warmup\": [1], \"gradients\": \"never\""), "gradients is \"never\"");
  refused(with(one, ", \"warmup\": [1], \"recompute\": 1"), "recompute is 1; give true or false");
  refused(with(one, ", \"warmup\": [1], \"latency_s\": -1"), "latency_s is -1");
}

}  // namespace plan_test
