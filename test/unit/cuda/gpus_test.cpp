// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <algorithm>
#include <iterator>

#include "gpus_cases.hpp"

namespace gpus_test {

using namespace gpus_model;

namespace {

template <class Rule>
void same_as_on_the_host(Case const& c, Rule rule, bool clips, bool recompute, bool peers = true) {
  CAPTURE(c.name, c.gpus, clips, recompute, peers);
  si::Session const session;
  si::set_machine({.peers = peers});
  si::jitter(7);
  si::in_progress_polls(2);
  astray = 0;
  {
    auto const options = options_with(clips, recompute);
    auto train = over(on_gpus(first(c.gpus)), rule, c.cuts(), schedule_of(c), options);
    auto host = on_host(c, rule, options);
    check_same(train, host, [&](int s) { return batch(s, c.parts(), true); });
  }
  CHECK(astray == 0);
  CHECK(si::aborts() == 0);
  si::reset();
  REQUIRE(session.left() == si::Live{});
}

}  // namespace

TEST_CASE("cuda/Gpus: a pipeline over GPUs has the host's bits under every schedule", "[cuda]") {
  int number = 0;
  for (auto const& c : catalog_cases) {
    if (sanitized && number++ % 3 != 0) continue;
    same_as_on_the_host(c, optimizer(), true, false);
    same_as_on_the_host(c, sg::optimizer::Sgd{.rate = 0.1, .momentum = 0.5}, false, true);
  }
}

TEST_CASE("cuda/Gpus: the catalog has no schedule that is not run here", "[cuda]") {
  for (auto const& entry : sg::schedule::catalog) {
    CAPTURE(entry.name);
    CHECK((entry.name == "forward-only" ||
           std::any_of(std::begin(catalog_cases), std::end(catalog_cases),
                       [&](Case const& c) { return entry.name == c.name; })));
  }
}

TEST_CASE("cuda/Gpus: GPUs that do not reach each other's memory have the host's bits too",
          "[cuda]") {
  for (auto const& c : {Case{"1f1b", 4, 1, 6, 4}, Case{"chimera", 4, 1, 4, 4}})
    same_as_on_the_host(c, optimizer(), true, false, false);
}

}  // namespace gpus_test
