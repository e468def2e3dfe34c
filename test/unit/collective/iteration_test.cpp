// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/iteration.hpp>

#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "collective/random_layers.hpp"

namespace iteration_test {

using namespace stagger;
using namespace stagger::collective;
using collective_test::Layers;
using Groups = std::vector<LayerGroup>;

namespace {

Layers example() { return {3, {3, 2, 2, 1}, {5, 30, 20, 10}}; }
constexpr CostLine example_cost{2, 0.1};

/// Two machines and a queue of events: a core that finishes layers, a link that carries one
/// message.
double play_events(Layers const& layers, Groups const& groups, CostLine cost) {
  enum Kind { layer_done, message_done };
  using Event = std::pair<double, std::pair<Kind, int>>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  int layer = static_cast<int>(layers.backward_s.size());
  double now = layers.forward_s;
  std::deque<double> waiting;  // durations of complete groups
  bool link_busy = false;
  std::size_t open = 0;
  std::uint64_t gathered = 0;
  if (layer > 0) events.push({now + layers.backward_s.back(), {layer_done, layer}});
  while (!events.empty()) {
    auto const [time, what] = events.top();
    events.pop();
    now = time;
    if (what.first == layer_done) {
      int const l = what.second;
      gathered += layers.bytes[static_cast<std::size_t>(l - 1)];
      if (open < groups.size() && groups[open].lowest == l) {
        waiting.push_back(gathered == 0 ? 0 : cost.startup_s + cost.per_byte_s * double(gathered));
        gathered = 0;
        ++open;
      }
      if (l > 1) {
        events.push(
            {now + layers.backward_s[static_cast<std::size_t>(l - 2)], {layer_done, l - 1}});
      }
    } else {
      link_busy = false;
    }
    if (!link_busy && !waiting.empty()) {
      link_busy = true;
      events.push({now + waiting.front(), {message_done, 0}});
      waiting.pop_front();
    }
  }
  return now;
}

Groups random_groups(std::mt19937& random, int layers) {
  Groups groups;
  for (int highest = layers; highest > 0;) {
    int const lowest = 1 + static_cast<int>(random() % static_cast<unsigned>(highest));
    groups.push_back({highest, lowest});
    highest = lowest - 1;
  }
  return groups;
}

template <class Call> std::string refusal(Call&& call) {
  try {
    call();
  } catch (Error const& e) {
    return e.what();
  }
  return "accepted";
}

bool has(std::string const& text, char const* words) {
  return text.find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("collective/evaluate: the worked example ends when its messages end", "[collective]") {
  struct Case {
    Groups groups;
    std::vector<double> start, end;
    double iteration;
  };
  Case const cases[] = {
      {{{4, 4}, {3, 3}, {2, 2}, {1, 1}}, {4, 7, 11, 16}, {7, 11, 16, 18.5}, 18.5},
      {{{4, 1}}, {11}, {19.5}, 19.5},
      {{{4, 4}, {3, 2}, {1, 1}}, {4, 8, 15}, {7, 15, 17.5}, 17.5},
      {{{4, 4}, {3, 3}, {2, 1}}, {4, 7, 11}, {7, 11, 16.5}, 16.5},
  };
  Layers const layers = example();
  for (auto const& c : cases) {
    auto const result = evaluate(layers, c.groups, example_cost);
    REQUIRE(result.messages.size() == c.groups.size());
    for (std::size_t i = 0; i < c.groups.size(); ++i) {
      CHECK(result.messages[i].start_s == Approx(c.start[i]));
      CHECK(result.messages[i].end_s == Approx(c.end[i]));
      CHECK(result.messages[i].group == c.groups[i]);
    }
    CHECK(result.iteration_s == Approx(c.iteration));
    CHECK(result.exposed_s == Approx(c.iteration - 11));
  }
}

TEST_CASE("collective/evaluate: equals a simulation of core and link by events (J9)",
          "[collective]") {
  std::mt19937 random(4);
  for (int trial = 0; trial < 3000; ++trial) {
    auto const layers = collective_test::random_layers(random, 20, trial % 2 == 0);
    auto const cost = collective_test::random_cost(random);
    auto const groups = random_groups(random, static_cast<int>(layers.bytes.size()));
    auto const result = evaluate(layers, groups, cost);
    REQUIRE(result.iteration_s == Approx(play_events(layers, groups, cost)).epsilon(1e-12));
    REQUIRE(result.exposed_s == Approx(result.iteration_s - layers.compute_s()).margin(1e-9));
    REQUIRE(result.iteration_s >= lower_bound_s(layers, cost) - 1e-9);  // J4
    std::uint64_t bytes = 0;                                            // J6
    double last = 0;
    for (auto const& m : result.messages) {
      bytes += m.bytes;
      REQUIRE(m.start_s >= last);
      REQUIRE(m.end_s >= m.start_s);
      last = m.end_s;
    }
    REQUIRE(bytes == std::accumulate(layers.bytes.begin(), layers.bytes.end(), std::uint64_t{0}));
    REQUIRE(result.messages.size() == groups.size());
  }
}

TEST_CASE("collective/evaluate: the lower bound is met where one message holds everything",
          "[collective]") {
  Layers const one{1, {2}, {30}};
  CHECK(lower_bound_s(one, example_cost) == Approx(8));
  CHECK(evaluate(one, Groups{{1, 1}}, example_cost).iteration_s == Approx(8));
  CHECK(lower_bound_s(example(), example_cost) == Approx(13.5));
  Layers const last_is_large{1, {2, 1}, {5, 60}};  // the bytes of all, behind the last layer
  CHECK(lower_bound_s(last_is_large, example_cost) == Approx(2 + 2 + 6.5));
  CHECK(evaluate(last_is_large, Groups{{2, 2}, {1, 1}}, CostLine{0, 0.1}).iteration_s ==
        Approx(lower_bound_s(last_is_large, CostLine{0, 0.1})));
  CHECK(lower_bound_s(Layers{2, {}, {}}, example_cost) == 2);
}

TEST_CASE("collective/evaluate: no layers, one layer, and one rank", "[collective]") {
  auto const none = evaluate(Layers{2, {}, {}}, Groups{}, example_cost);
  CHECK(none.iteration_s == 2);
  CHECK(none.exposed_s == 0);
  CHECK(none.messages.empty());
  CHECK(evaluate(example(), Groups{{4, 1}}, CostLine{}).exposed_s == 0);
}

TEST_CASE("collective/evaluate: bad times, sizes and groups are refused with the layer",
          "[collective]") {
  Groups const all{{4, 1}};
  double const bad[] = {-1, std::nan(""), std::numeric_limits<double>::infinity()};
  for (double x : bad) {
    Layers layers = example();
    layers.backward_s[2] = x;
    CHECK(has(refusal([&] { return evaluate(layers, all, example_cost); }), "layer 3"));
    layers = example();
    layers.forward_s = x;
    CHECK(has(refusal([&] { return evaluate(layers, all, example_cost); }), "forward"));
    CHECK(has(refusal([&] { return evaluate(example(), all, CostLine{x, 0}); }), "start-up"));
    CHECK(has(refusal([&] { return evaluate(example(), all, CostLine{0, x}); }), "per byte"));
  }
  Layers uneven = example();
  uneven.bytes.pop_back();
  CHECK(
      has(refusal([&] { return evaluate(uneven, all, example_cost); }), "4 backward times, but 3"));
  struct {
    Groups groups;
    char const* words;
  } const cases[] = {
      {{{4, 3}, {1, 1}}, "layer 2 comes next"},                  // gap
      {{{4, 2}, {2, 1}}, "layer 1 comes next"},                  // overlap
      {{{1, 1}, {2, 2}, {3, 3}, {4, 4}}, "layer 4 comes next"},  // ascending
      {{{4, 2}}, "the groups end before layer 1"},               // not all
      {{{4, 0}}, "layers 4 to 0"},
      {{{4, 5}}, "layers 4 to 5"},
      {{{5, 1}}, "layers 5 to 1"},
      {{{4, 1}, {0, 0}}, "layer 0 comes next"},
      {{}, "the groups end before layer 4"},
  };
  for (auto const& c : cases) {
    INFO(c.words);
    CHECK(has(refusal([&] { return evaluate(example(), c.groups, example_cost); }), c.words));
  }
}

}  // namespace iteration_test
