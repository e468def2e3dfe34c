// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <stagger/placement/explicit_map.hpp>

#include "gpus_cases.hpp"

using namespace gpus_model;

namespace {

/// Every schedule of the catalog that trains and flushes, in shapes that it allows, on as many GPUs
/// as ranks or on fewer.
constexpr Case cases[] = {
    {"gpipe", 4, 1, 5, 4},       {"1f1b", 4, 1, 6, 4},       {"1f1b", 4, 1, 6, 2},
    {"interleaved", 2, 2, 4, 2}, {"looped-bfs", 2, 2, 5, 2}, {"zb-h1", 3, 1, 5, 3},
    {"zb-h2", 3, 1, 6, 2},       {"zb-v", 2, 2, 5, 2},       {"v-half", 2, 2, 6, 2},
    {"v-min", 2, 2, 6, 2},       {"v-1f1b", 2, 2, 5, 2},     {"dualpipe", 2, 1, 4, 2},
    {"dualpipe-v", 2, 2, 5, 2},  {"chimera", 2, 1, 4, 2},    {"chimera", 4, 1, 4, 4},
    {"hanayo", 2, 2, 4, 2},      {"auto", 3, 1, 4, 3},       {"seq-1f1b", 3, 1, 4, 3},
    {"fifo", 3, 1, 4, 3},        {"pipedream", 3, 1, 5, 3},  {"pipedream-2bw", 4, 1, 4, 4}};

sg::Options options_with(bool clips, bool recompute) {
  sg::Options options;
  if (clips) options.clip_norm = clip;
  options.recompute = recompute;
  options.seed = run_seed;
  options.deadline_s = 60;
  return options;
}

template <class Rule>
void same_as_on_the_host(Case const& c, Rule rule, bool clips, bool recompute, bool peers = true) {
  CAPTURE(c.name, c.gpus, clips, recompute, peers);
  bool const slices = std::string(c.name) == "seq-1f1b";
  si::Session const session;
  si::set_machine({.peers = peers});
  si::jitter(7);
  si::in_progress_polls(2);
  astray = 0;
  {
    auto const cuts = even_cuts(c.ranks * c.chunks);
    auto train =
        over(on_gpus(first(c.gpus)), rule, cuts, schedule_of(c), options_with(clips, recompute));
    auto host = sg::Pipeline{model()}.with(sg::partition::Cuts{cuts}, schedule_of(c), Loss{}, rule,
                                           sg::host::Threads{1}, options_with(clips, recompute));
    for (int s = 0; s < 4; ++s) {
      auto const data = batch(s, slices ? 2 * c.microbatches : c.microbatches, true);
      auto const here = sg::run(host.step(data));
      auto const there = sg::run(train.step(data));
      REQUIRE(there.loss == here.loss);
      REQUIRE(there.gradient_norm == here.gradient_norm);
      REQUIRE((bits(train) == bits(host)));
    }
    auto const data = batch(9, slices ? 2 * c.microbatches : c.microbatches, true);
    REQUIRE(sg::run(train.evaluate(data)).loss == sg::run(host.evaluate(data)).loss);
  }
  CHECK(astray == 0);
  CHECK(si::aborts() == 0);
  si::reset();
  REQUIRE(session.left() == si::Live{});
}

}  // namespace

TEST_CASE("cuda/Gpus: a pipeline over GPUs has the host's bits under every schedule", "[cuda]") {
  int number = 0;
  for (auto const& c : cases) {
    if (sanitized && number++ % 3 != 0) continue;
    same_as_on_the_host(c, optimizer(), true, false);
    same_as_on_the_host(c, sg::optimizer::Sgd{.rate = 0.1, .momentum = 0.5}, false, true);
  }
}

TEST_CASE("cuda/Gpus: the catalog has no schedule that is not run here", "[cuda]") {
  for (auto const& entry : sg::schedule::catalog) {
    CAPTURE(entry.name);
    CHECK((entry.name == "forward-only" ||
           std::any_of(std::begin(cases), std::end(cases),
                       [&](Case const& c) { return entry.name == c.name; })));
  }
}

TEST_CASE("cuda/Gpus: GPUs that do not reach each other's memory have the host's bits too",
          "[cuda]") {
  for (auto const& c : {Case{"1f1b", 4, 1, 6, 4}, Case{"chimera", 4, 1, 4, 4}})
    same_as_on_the_host(c, optimizer(), true, false, false);
}
