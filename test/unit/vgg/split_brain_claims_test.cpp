// SPDX-License-Identifier: Apache-2.0
// The claims of SplitBrain's paper, by the names that docs/papers.md gives them.
#include "vgg/split_brain.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/staleness/local_sgd.hpp>

#include "catch.hpp"
#include "vgg/images.hpp"
#include "vgg/small.hpp"

namespace split_brain_claims_test {

namespace sg = stagger;
namespace split_brain = vgg::split_brain;
using split_brain::Run;
using split_brain::table_1;
using split_brain::table_2;

namespace {

/// The engine's throughput for a row of table 2, each computed once.
double simulated(int ranks, int members) {
  static std::vector<double> const all = [] {
    std::vector<double> images_s;
    for (auto const& row : table_2)
      images_s.push_back(split_brain::run_minibatch(row.ranks, row.members, row.members).images_s);
    return images_s;
  }();
  for (std::size_t r = 0; r < table_2.size(); ++r)
    if (table_2[r].ranks == ranks && table_2[r].members == members) return all[r];
  FAIL("table 2 has no row of " << ranks << " ranks in groups of " << members);
  return 0;
}

std::size_t parameters_of(int members) {
  auto const layers = split_brain::layers_of_weights();
  return sg::partition::parameters_of(sg::partition::plan_split(layers, {.group = members}), layers,
                                      0);
}

}  // namespace

TEST_CASE("vgg/SplitBrain: Q1, table 1's parameters and their shares", "[vgg]") {
  std::vector<std::size_t> weights;
  for (auto const& layer : split_brain::layers_of_weights())
    if (layer.parameters != 0) weights.push_back(layer.parameters);
  REQUIRE(weights.size() == table_1.size());
  std::size_t convolutions = 0;
  std::size_t all = 0;
  for (std::size_t l = 0; l < weights.size(); ++l) {
    CHECK(weights[l] == table_1[l].weights);
    if (l < 7) convolutions += weights[l];
    all += weights[l];
  }
  CHECK(convolutions == 1'734'336);
  CHECK(all - convolutions == 5'253'120);
  auto const total = static_cast<double>(all);
  CHECK(std::abs(100 * static_cast<double>(convolutions) / total - 24.83) < 0.02);
  CHECK(std::abs(100 * static_cast<double>(all - convolutions) / total - 75.17) < 0.02);
}

TEST_CASE("vgg/SplitBrain: Q2, up to 67 % of the parameters of a rank are saved", "[vgg]") {
  auto const whole = static_cast<double>(parameters_of(1));
  CHECK(100 * (1 - static_cast<double>(parameters_of(2)) / whole) == Approx(37.5).margin(0.05));
  CHECK(100 * (1 - static_cast<double>(parameters_of(4)) / whole) == Approx(56.3).margin(0.05));
  CHECK(100 * (1 - static_cast<double>(parameters_of(8)) / whole) == Approx(65.7).margin(0.05));
  // With the last layer split too, of whose 10 neurons a member has one or two.
  auto const layers = split_brain::layers_of_weights();
  auto const plan = sg::partition::plan_split(layers, {.group = 8, .threshold = 0});
  for (int member = 0; member < 8; ++member) {
    CAPTURE(member);
    auto const own = static_cast<double>(sg::partition::parameters_of(plan, layers, member));
    CHECK(100 * (1 - own / whole) == Approx(65.8).margin(0.05));
  }
  double split = 0;  // of which ever larger groups save ever more
  for (std::size_t l = 0; l < layers.size(); ++l)
    if (plan.layers[l].by != sg::SplitBy::nothing)
      split += static_cast<double>(layers[l].parameters);
  CHECK(100 * split / whole == Approx(75.2).margin(0.05));
}

TEST_CASE("vgg/SplitBrain: Q3, table 2's throughputs in virtual time", "[vgg]") {
  for (auto const& [ranks, members, published] : table_2) {
    CAPTURE(ranks, members);
    CHECK(split_brain::fitted_images_s(ranks, members) == Approx(published).epsilon(0.025));
    CHECK(simulated(ranks, members) == Approx(published).epsilon(0.03));
  }
  CHECK(simulated(1, 1) == Approx(121.99).epsilon(1e-9));  // what the cluster is calibrated on
  CHECK(simulated(8, 8) == Approx(520).epsilon(1e-3));
}

TEST_CASE("vgg/SplitBrain: Q4, groups of 2 scale nearly linearly", "[vgg]") {
  CHECK(simulated(32, 2) / simulated(2, 2) > 15.5);
}

TEST_CASE("vgg/SplitBrain: Q5, what a group costs depends on its members, not on the ranks",
          "[vgg]") {
  auto const relative = [](int ranks, int members) {
    return simulated(ranks, members) / simulated(ranks, 1);
  };
  for (int const ranks : {2, 4, 8, 16, 32})
    CHECK(relative(ranks, 2) == Approx(relative(2, 2)).epsilon(0.03));
  CHECK(relative(32, 4) == Approx(relative(4, 4)).epsilon(0.03));
  CHECK(relative(32, 8) == Approx(relative(8, 8)).epsilon(0.03));
  CHECK(relative(2, 2) == Approx(0.9625).margin(0.0125));
  CHECK(relative(4, 4) == Approx(0.8525).epsilon(0.03));
  CHECK(relative(8, 8) == Approx(0.5335).epsilon(0.03));
}

TEST_CASE("vgg/SplitBrain: Q6, larger groups exchange more and average less, counted", "[vgg]") {
  // The network of width 1, with real gradients; 8 ranks in groups of 1, 2, 4, 8.
  constexpr int ranks = 8;
  constexpr vgg::ModelShape shape{.width = 1, .dropout = 0, .minibatch = {16, 1}};
  auto const data = vgg::make_textures(1, 20, 10);
  vgg::Batch batch;
  data.training.draw(1, 0, shape.minibatch, batch);
  std::uint64_t exchanged = 0;
  std::uint64_t averaged = std::numeric_limits<std::uint64_t>::max();
  for (int const members : {1, 2, 4, 8}) {
    auto train = sg::Pipeline{vgg::make_model<float>(shape, 1)}.with(
        sg::partition::LayerSplit{.group = members, .threshold = 10},
        sg::optimizer::Sgd{.rate = 0.05}, sg::loss::CrossEntropy<float>{},
        sg::Options{.replicas = {ranks}});
    sg::run(train.step(batch));
    auto const traffic = train.traffic();
    std::uint64_t const shared = traffic.of(sg::TrafficKind::shared_activations).bytes +
                                 traffic.of(sg::TrafficKind::shared_gradients).bytes;
    std::uint64_t const sums = traffic.of(sg::TrafficKind::gradient_sums).bytes;
    CAPTURE(members, shared, sums);
    CHECK((members == 1 ? shared == 0 : shared > exchanged));
    CHECK(sums < averaged);
    exchanged = shared;
    averaged = sums;
  }
}

TEST_CASE("vgg/SplitBrain: Q7, more memory saved is throughput lost, and no group is dominated",
          "[vgg]") {
  double images_s = std::numeric_limits<double>::infinity();
  std::size_t memory = std::numeric_limits<std::size_t>::max();
  for (int const members : {1, 2, 4, 8}) {
    double const now = split_brain::run_minibatch(8, members, members).images_s;
    CHECK(now < images_s);
    CHECK(parameters_of(members) < memory);
    images_s = now;
    memory = parameters_of(members);
  }
}

TEST_CASE("vgg/SplitBrain: Q8, groups are faster than one group of all ranks", "[vgg]") {
  CHECK(simulated(8, 2) / simulated(8, 8) > 1.5);
  CHECK(simulated(32, 2) / simulated(32, 8) > 1.5);
}

TEST_CASE("vgg/SplitBrain: Q9, data parallelism scales linearly", "[vgg]") {
  CHECK(simulated(32, 1) / simulated(1, 1) > 31);
}

TEST_CASE("vgg/SplitBrain: Q10, parts of the batch scale, the whole at once and turns do not",
          "[vgg]") {
  for (int const members : {2, 4, 8}) {
    CAPTURE(members);
    auto const k = static_cast<std::uint64_t>(members);
    Run const parts = split_brain::run_minibatch(members, members, members);
    Run const whole = split_brain::run_minibatch(members, members, 1);
    CHECK(parts.dense_inputs == split_brain::local_batch * 4096);
    CHECK(whole.dense_inputs == k * parts.dense_inputs);
    // The same travels, in as many messages as there are passes.
    CHECK(whole.forward.bytes == parts.forward.bytes);
    CHECK(whole.backward.bytes == parts.backward.bytes);
    CHECK(parts.forward.messages == 3 * k * (k - 1));
    CHECK(whole.forward.messages == 3 * (k - 1));
    using split_brain::Scheme;
    double const together_s = split_brain::exchange_seconds(Scheme::parts, members, 1);
    CHECK(together_s == Approx(members - 1));
    CHECK(split_brain::exchange_seconds(Scheme::in_turns, members, 1) ==
          Approx(members * together_s));
  }
}

TEST_CASE(
    "vgg/SplitBrain: averaging after every 4 batches, the loss is within 5 % of that after each, "
    "after every 16 within 10 %",
    "[vgg]") {
  // Two workers with momentum, which is averaged along; the same images for each period.
  constexpr vgg::ModelShape shape{.width = 2, .dropout = 0, .minibatch = {16, 1}};
  auto const data = vgg::make_textures(1, 1000, 256);
  vgg::Batch held_out;
  data.held_out.take(0, {256, 1}, held_out);
  struct Result {
    double before, after;
    std::uint64_t pushed;
  };
  auto const train = [&](int period) {
    sg::collective::ParameterServer const server({.workers = 2});
    auto const worker = [&](int number) {
      return sg::Pipeline{vgg::make_model<float>(shape, 1)}.with(
          sg::partition::Even{1}, sg::staleness::LocalSgd{.period = period}, server.worker(number),
          sg::optimizer::Sgd{.rate = 0.005, .momentum = 0.9}, sg::loss::CrossEntropy<float>{},
          sg::host::Threads{1});
    };
    auto a = worker(0);
    auto b = worker(1);
    Result result{};
    result.before = sg::run(a.evaluate(held_out)).loss;
    std::array<vgg::Batch, 2> batches;
    for (int step = 0; step < 112; ++step) {  // a multiple of the periods
      for (std::uint64_t w = 0; w < 2; ++w)
        data.training.draw(1 + w, step, shape.minibatch, batches[w]);
      sg::run_together(a.step(batches[0]), b.step(batches[1]));
    }
    result.after = sg::run(a.evaluate(held_out)).loss;
    result.pushed = a.traffic().of(sg::TrafficKind::pushes).bytes;
    return result;
  };
  Result const each = train(1);
  CHECK(each.after < 0.8 * each.before);
  for (auto const& [period, apart] : {std::pair{4, 0.05}, {16, 0.1}}) {
    CAPTURE(period);
    Result const seldom = train(period);
    CHECK(seldom.after == Approx(each.after).epsilon(apart));
    CHECK(each.pushed == static_cast<std::uint64_t>(period) * seldom.pushed);
  }
}

TEST_CASE("vgg/SplitBrain: a small network learns alike in groups of 1, 2 and 4 on threads",
          "[vgg]") {
  // benchmark/slow_links.cpp measures its throughput over slow links.
  constexpr int ranks = 4;
  vgg::small::Textures const textures(1);
  std::array<std::vector<double>, 3> losses;
  for (std::size_t k = 0; k < losses.size(); ++k) {
    int const members = 1 << k;
    auto train = sg::Pipeline{vgg::small::make_model(1, [](auto layer) { return layer; })}.with(
        sg::partition::LayerSplit{.group = members}, sg::optimizer::Sgd{.rate = 0.02},
        sg::loss::CrossEntropy<float>{}, sg::host::Threads{ranks},
        sg::Options{.replicas = {ranks}});
    for (int step = 0; step < 30; ++step)
      losses[k].push_back(
          sg::run(train.step(textures.draw(1, step, {16 * ranks, std::size_t{1} << k}))).loss);
    CAPTURE(members, losses[k].front(), losses[k].back());
    CHECK(losses[k].back() < 0.6 * losses[k].front());
    for (std::size_t step = 0; step < losses[k].size(); ++step)
      CHECK(losses[k][step] == Approx(losses[0][step]).epsilon(1e-5));
    // Unless they are replicas alone, they share both large dense layers.
    CHECK((train.traffic().of(sg::TrafficKind::shared_activations).messages != 0) == (k != 0));
  }
}

}  // namespace split_brain_claims_test
