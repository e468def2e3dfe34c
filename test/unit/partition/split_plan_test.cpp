// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/split_plan.hpp>

#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "catch.hpp"
#include "partition/random_model.hpp"

namespace split_plan_test {

namespace sg = stagger;
using namespace stagger::partition;
using sg::SplitBy;

namespace {

/// Seven convolutions with pooling, and three dense layers with ReLU and dropout: weights alone.
std::vector<LayerFeatures> vgg() {
  std::vector<LayerFeatures> layers;
  for (std::size_t const weights :
       std::vector<std::size_t>{1728, 36864, 0, 73728, 147456, 0, 294912, 589824, 589824, 0})
    layers.push_back({.parameters = weights});
  std::size_t inputs = 4096;
  for (std::size_t const outputs : std::vector<std::size_t>{1024, 1024, 10}) {
    layers.push_back({.inputs = inputs, .outputs = outputs, .parameters = inputs * outputs});
    if (outputs != 10)
      for (int twice = 0; twice < 2; ++twice) layers.push_back({.element_wise = true});
    inputs = outputs;
  }
  return layers;
}

constexpr double never = std::numeric_limits<double>::infinity();

std::vector<GroupExchange> cuts(SplitPlan const& plan) {
  std::vector<GroupExchange> cuts;
  for (std::size_t l = 0; l <= plan.layers.size(); ++l)
    if (plan.exchange(l) != GroupExchange::none) cuts.push_back(plan.exchange(l));
  return cuts;
}

Elements all_sent(SplitPlan const& plan, int member, std::size_t rows) {
  Elements sum;
  for (std::size_t l = 0; l <= plan.layers.size(); ++l) {
    Elements const sent = elements_sent(plan, l, member, rows);
    sum.forward += sent.forward;
    sum.backward += sent.backward;
  }
  return sum;
}

}  // namespace

TEST_CASE("partition/SplitPlan: the network of the paper has its sizes, cuts and traffic",
          "[partition]") {
  auto const layers = vgg();
  CHECK(operations_per_element({.inputs = 4096, .outputs = 1024}) == Approx(2457.6));
  CHECK(operations_per_element({.inputs = 1024, .outputs = 1024}) == 1536);
  CHECK(operations_per_element({.inputs = 1024, .outputs = 10}) == Approx(29.7).margin(0.05));
  std::size_t convolutions = 0;
  for (std::size_t l = 0; l < 10; ++l) convolutions += layers[l].parameters;
  CHECK(convolutions == 1'734'336);

  std::size_t const expected[] = {6'987'456, 4'366'016, 3'055'296, 2'399'936};
  for (int const k : {0, 1, 2, 3}) {
    auto const plan = plan_split(layers, {.group = 1 << k});
    for (int member = 0; member < plan.members; ++member)
      CHECK(parameters_of(plan, layers, member) == expected[k]);
    CHECK(plan.splits() == (k != 0));
  }
  auto const plan = plan_split(layers, {.group = 4});
  CHECK(cuts(plan) ==
        std::vector{GroupExchange::modulo, GroupExchange::shard, GroupExchange::collect});
  CHECK(plan.exchange(10) == GroupExchange::modulo);
  CHECK(plan.exchange(13) == GroupExchange::shard);
  CHECK(plan.exchange(16) == GroupExchange::collect);
  CHECK(elements_sent(plan, 10, 0, 16).forward == 3 * 16 * 4096);
  CHECK(elements_sent(plan, 13, 1, 16).backward == 3 * 16 * 1024);
  CHECK(elements_sent(plan, 16, 2, 16).backward == 0);
  CHECK(activations_of(plan, layers, 0, 0, 16) == 0);  // not known
  CHECK(activations_of(plan, layers, 10, 1, 16) == 4 * 16 * 256);
  CHECK(activations_of(plan, layers, 11, 1, 16) == 4 * 16 * 256);
  CHECK(activations_of(plan, layers, 16, 1, 16) == 4 * 16 * 10);
  for (int member = 0; member < 4; ++member) {
    CHECK(all_sent(plan, member, 16).forward == 294'912);
    CHECK(all_sent(plan, member, 16).backward == 245'760);
  }
  // A threshold of nothing splits the last layer too, of infinity none.
  CHECK(cuts(plan_split(layers, {.group = 4, .threshold = 0})) ==
        std::vector{GroupExchange::modulo, GroupExchange::shard, GroupExchange::shard,
                    GroupExchange::collect});
  CHECK(cuts(plan_split(layers, {.group = 16, .threshold = 0})) ==
        std::vector{GroupExchange::modulo, GroupExchange::shard, GroupExchange::collect});
  CHECK_FALSE(plan_split(layers, {.group = 4, .threshold = never}).splits());
}

TEST_CASE("partition/SplitPlan: groups exchange more and average less as they grow",
          "[partition]") {
  auto const layers = vgg();
  double averaged = std::numeric_limits<double>::infinity();
  std::size_t sent = 0;
  for (int const members : {1, 2, 4, 8}) {
    auto const plan = plan_split(layers, {.group = members});
    double const now = averaged_elements(plan, layers, 0, 8);
    CHECK(now < averaged);
    averaged = now;
    auto const all = all_sent(plan, 0, 16);
    CHECK((members == 1 ? all.forward == 0 : all.forward > sent));
    sent = all.forward;
  }
  // All ranks are one group: only what lies in front of the split layers is averaged.
  CHECK(averaged == Approx(2.0 * 7 / 8 * 1'734'336));
}

TEST_CASE("partition/SplitPlan: a pair of layers needs one sum forward and one backward",
          "[partition]") {
  std::vector<LayerFeatures> const block{
      {.inputs = 8, .outputs = 32, .parameters = 8 * 32 + 32, .biases = 32},
      {.element_wise = true},
      {.inputs = 32, .outputs = 8, .by_inputs = true, .parameters = 32 * 8 + 8, .biases = 8}};
  std::vector<LayerFeatures> two = block;
  two.insert(two.begin(), LayerFeatures{.parameters = 5});
  two.insert(two.end(), block.begin(), block.end());
  auto const plan = plan_split(two, {.group = 2, .threshold = 0, .pairs = true});
  CHECK(cuts(plan) == std::vector{GroupExchange::modulo, GroupExchange::sum, GroupExchange::total});
  CHECK(plan.layers[3].by == SplitBy::inputs);
  CHECK(plan.layers[2].takes == Held::columns);
  CHECK(parameters_of(plan, two, 0) == 5 + 2 * (4 * 36 + 128 + 8));
  CHECK(parameters_of(plan, two, 1) == 5 + 2 * (4 * 36 + 128));
  // Layers that cannot be split by inputs are split by outputs.
  two[3].by_inputs = two[6].by_inputs = false;
  CHECK(cuts(plan_split(two, {.group = 2, .threshold = 0, .pairs = true})) ==
        std::vector{GroupExchange::modulo, GroupExchange::shard, GroupExchange::shard,
                    GroupExchange::shard, GroupExchange::collect});
}

TEST_CASE(
    "partition/SplitPlan: a layer that is split by what is hidden takes the whole and gives "
    "terms",
    "[partition]") {
  // A transformer's half block: a normalisation that hands on its input, too, and 8 -> 32 -> 8.
  std::vector<LayerFeatures> const half{{.parameters = 16},
                                        {.inputs = 16,
                                         .outputs = 8,
                                         .parameters = 8 * 32 + 32 + 32 * 8 + 8,
                                         .biases = 8,
                                         .hidden = 32,
                                         .operations = 2 * 8 * 32}};
  std::vector<LayerFeatures> chain{{.parameters = 5}};
  for (int twice = 0; twice < 2; ++twice) chain.insert(chain.end(), half.begin(), half.end());
  chain.push_back({.parameters = 7});
  CHECK(operations_per_element(half[1]) == 64);
  auto const plan = plan_split(chain, {.group = 2, .threshold = 63});
  CHECK(cuts(plan) == std::vector{GroupExchange::modulo, GroupExchange::total, GroupExchange::fan,
                                  GroupExchange::total});
  CHECK(plan.exchange(2) == GroupExchange::modulo);
  CHECK(plan.exchange(5) == GroupExchange::total);
  CHECK(plan.layers[2].by == SplitBy::hidden);
  CHECK(plan.layers[4].gives == Held::terms);
  CHECK(parameters_of(plan, chain, 0) == 5 + 7 + 2 * (16 + 16 * 17 + 8));
  CHECK(parameters_of(plan, chain, 1) == 5 + 7 + 2 * (16 + 16 * 17));
  CHECK(elements_sent(plan, 2, 0, 3).forward == 3 * 16);
  CHECK(elements_sent(plan, 3, 1, 3).forward == 2 * 3 * 8);
  CHECK(elements_sent(plan, 3, 1, 3).backward == 0);
  CHECK(elements_sent(plan, 4, 1, 3).forward == 0);
  CHECK(elements_sent(plan, 4, 1, 3).backward == 2 * 3 * 16);
  // Two behind each other without such a normalisation need one sum a layer and direction.
  chain = {{.parameters = 5}, half[1], half[1]};
  chain[1].inputs = chain[2].inputs = 8;
  CHECK(cuts(plan_split(chain, {.group = 4, .threshold = 0})) ==
        std::vector{GroupExchange::modulo, GroupExchange::sum, GroupExchange::total});
  CHECK_FALSE(plan_split(chain, {.group = 2, .threshold = 96}).splits());
  CHECK_FALSE(plan_split(chain, {.group = 33, .threshold = 0}).splits());
}

namespace {

/// Elements by the member that sends them, and by the one that receives them.
struct Sent {
  std::vector<std::size_t> by, to;
};

/// What each member sends at every cut of a plan, each element routed by itself.
struct Router {
  SplitPlan const& plan;
  std::size_t rows;  // of each member
  std::size_t members = static_cast<std::size_t>(plan.members);

  [[nodiscard]] bool has(Held held, std::size_t width, std::size_t m, std::size_t row,
                         std::size_t column) const {
    if (held == Held::rows) return row / rows == m;
    return held != Held::columns ||
           (column >= m * width / members && column < (m + 1) * width / members);
  }
  /// @param taken    what everyone wants in the end
  /// @param summands whether what everyone has are terms
  void route(Sent& sent, std::size_t width, Held given, Held taken, bool summands) const {
    for (std::size_t to = 0; to < members; ++to)
      for (std::size_t r = 0; r < rows * members; ++r)
        for (std::size_t c = 0; c < width; ++c) {
          if (!has(taken, width, to, r, c)) continue;
          if (summands && taken == Held::whole && members > 2 && width >= members) {
            // Its owner adds it up, and sends the sum to who wants it.
            std::size_t owner = 0;
            while (!has(Held::columns, width, owner, r, c)) ++owner;
            std::size_t const from = owner == to ? members : owner;
            for (std::size_t term = 0; term < members; ++term) {
              if (from != members ? term != from : term == to) continue;
              ++sent.by[term];
              ++sent.to[to];
            }
            continue;
          }
          if (!summands && has(given, width, to, r, c)) continue;
          for (std::size_t from = 0; from < members; ++from)
            if (from != to && has(given, width, from, r, c)) {
              ++sent.by[from];
              ++sent.to[to];
              if (!summands) break;
            }
        }
  }
  [[nodiscard]] Sent sent(std::size_t layer, bool forward) const {
    Sent sent{std::vector<std::size_t>(members), std::vector<std::size_t>(members)};
    Held const given = layer == 0 ? Held::rows : plan.layers[layer - 1].gives;
    bool const end = layer == plan.layers.size();
    Held const taken = end ? (given == Held::rows ? given : Held::whole) : plan.layers[layer].takes;
    bool const partial = !end && (plan.layers[layer].by == SplitBy::outputs ||
                                  plan.layers[layer].by == SplitBy::hidden);
    if (layer == 0) return sent;
    if (forward)
      route(sent, plan.width(layer), given, taken, given == Held::terms);
    else
      route(sent, plan.width(layer), taken, given == Held::terms ? Held::whole : given, partial);
    return sent;
  }
};

}  // namespace

TEST_CASE("partition/SplitPlan: what members send is what a router of single elements counts",
          "[partition]") {
  partitions::Random random(3);
  for (int i = 0; i < 300; ++i) {
    std::vector<LayerFeatures> layers;
    std::size_t width = static_cast<std::size_t>(partitions::pick(random, 1, 9));
    for (int l = partitions::pick(random, 1, 6); l > 0; --l) {
      int const kind = partitions::pick(random, 0, 6);
      if (kind == 0) {
        layers.push_back({.element_wise = true});
        continue;
      }
      auto const outputs = static_cast<std::size_t>(partitions::pick(random, 1, 9));
      layers.push_back({.inputs = width, .outputs = outputs, .by_inputs = kind > 1});
      if (kind > 4) layers.back().hidden = static_cast<std::size_t>(partitions::pick(random, 1, 5));
      layers.back().operations = 3 * layers.back().hidden;
      width = outputs;
    }
    auto const plan = plan_split(layers, {.group = partitions::pick(random, 1, 4),
                                          .threshold = partitions::pick(random, 0, 8) * 1.0,
                                          .pairs = i % 2 == 0});
    auto const rows = static_cast<std::size_t>(partitions::pick(random, 1, 3));
    Router const router{plan, rows};
    for (std::size_t l = 0; l <= layers.size(); ++l) {
      auto const forward = router.sent(l, true);
      auto const backward = router.sent(l, false);
      for (int member = 0; member < plan.members; ++member) {
        CAPTURE(i, l, member, plan.members);
        auto const m = static_cast<std::size_t>(member);
        auto const sent = elements_sent(plan, l, member, rows);
        REQUIRE(sent.forward == forward.by[m]);
        REQUIRE(sent.backward == backward.by[m]);
        auto const received = elements_received(plan, l, member, rows);
        REQUIRE(received.forward == forward.to[m]);
        REQUIRE(received.backward == backward.to[m]);
      }
    }
  }
}

TEST_CASE("partition/SplitPlan: pieces of all members make the whole, however they divide",
          "[partition]") {
  for (std::size_t const features : {3U, 7U, 10U, 16U, 101U})
    for (std::size_t const members : {1U, 2U, 3U, 4U, 8U}) {
      std::size_t next = 0;
      for (std::size_t m = 0; m < members; ++m) {
        auto const own = sg::features_of(m, members, features);
        CHECK(own.first == next);
        CHECK(own.size() * members + members > features);
        CHECK(own.size() * members < features + members);
        next = own.last;
      }
      CHECK(next == features);
    }
}

TEST_CASE("partition/SplitPlan: what does not fit is refused in one sentence", "[partition]") {
  std::vector<LayerFeatures> const layers{{.inputs = 4, .outputs = 6}, {.inputs = 5, .outputs = 2}};
  CHECK_THROWS_WITH(plan_split(layers, {.group = 2}),
                    "layer 1 takes 5 features, but 6 arrive; let its inputs() be the outputs() of "
                    "the layer before it");
  CHECK_THROWS_WITH(plan_split({}, {.group = 0}),
                    "a group of 0 ranks cannot share layers; use at least 1");
  CHECK_THROWS_WITH(plan_split(layers, {.group = 2}, std::vector{3, 3}),
                    Catch::Contains("layer 3 takes 5 features"));
  CHECK_THROWS_WITH(plan_split(layers, {.group = 2, .threshold = std::nan("")}),
                    "a threshold of nan operations for each element does not tell which layers to "
                    "split; use 0 or more");
  auto const plan = plan_split(vgg(), {.group = 4});
  CHECK_THROWS_WITH(parameters_of(plan, layers, 0),
                    "a plan for 17 layers does not belong to a chain of 2; give the layers it was "
                    "made for");
  CHECK_THROWS_WITH(averaged_elements(plan, vgg(), 0, 6),
                    "6 ranks cannot form groups of 4; use a multiple of it");
}

}  // namespace split_plan_test
