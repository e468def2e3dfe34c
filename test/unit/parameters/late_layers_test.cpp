// SPDX-License-Identifier: Apache-2.0
#include <stagger/parameters/late_layers.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include <stagger/core/random.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

namespace late_layers_test {

namespace sg = stagger;
namespace osp = sg::staleness::overlapped;
using sg::detail::LateLayers;

namespace {

/// Splits the first layers.
template <int count> struct Halves {
  template <class Layer> void pick(std::span<Layer> layers, double) const {
    for (int l = 0; l < count; ++l) layers[static_cast<std::size_t>(l)].late_bytes = 19;
  }
};

/// A budget that is no number of bytes.
struct Wrong {
  double value = 0;
  template <class Step> double bytes(Step const&) const { return value; }
  friend bool operator==(Wrong const&, Wrong const&) = default;
};

/// Marks everything, whatever the budget.
struct Greedy {
  template <class Layer> void pick(std::span<Layer> layers, double) const {
    for (Layer& each : layers) each.late = true;
  }
};

template <class Selection = osp::FirstFit>
LateLayers make(std::vector<std::uint64_t> const& bytes, double share, std::size_t workers = 1) {
  using Model = sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, Selection,
                                                     osp::ShareLate>;
  Model const model{.budget = {share}};
  sg::List<std::uint64_t> sizes;
  for (std::uint64_t const each : bytes) sizes.push_back(each);
  return LateLayers(std::make_unique<sg::detail::LateChoiceOf<Model>>(model), std::move(sizes),
                    workers, workers, true);
}
/// The late layers after a step with these scores.
std::vector<bool> late(LateLayers& layers, std::vector<std::uint64_t> const& bytes,
                       std::vector<double> const& scores) {
  bool known = layers.add_loss(0, 1);
  for (std::size_t l = 0; l < scores.size(); ++l)
    if (bytes[l] != 0) known = layers.add_score(l, scores[l]);
  REQUIRE(known);
  std::vector<bool> result;
  for (std::size_t l = 0; l < scores.size(); ++l) result.push_back(layers.late().bytes(l, 8) != 0);
  return result;
}

std::vector<std::uint64_t> sizes(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint64_t> result;
  for (std::size_t l = 0; l < count; ++l) result.push_back(sg::random_bits(seed, {l}) % 100);
  return result;
}
std::vector<double> random_scores(std::size_t count, std::uint64_t seed) {
  std::vector<double> result;
  for (std::size_t l = 0; l < count; ++l)
    result.push_back(static_cast<double>(sg::random_bits(seed, {l, 1}) % 1000));
  return result;
}

}  // namespace

TEST_CASE("parameters/LateLayers: what is late fits the budget, and a larger one has no less late",
          "[parameters]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    auto const bytes = sizes(12, seed);
    auto const scores = random_scores(12, seed);
    auto const model = std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
    for (double const share : {0.0, 0.1, 0.3, 0.5, 0.8}) {
      auto layers = make(bytes, share);
      auto const chosen = late(layers, bytes, scores);
      std::uint64_t sum = 0;
      for (std::size_t l = 0; l < bytes.size(); ++l) {
        if (chosen[l]) sum += bytes[l];
        if (bytes[l] == 0) CHECK_FALSE(chosen[l]);  // nothing is sent of it
      }
      CHECK(static_cast<double>(sum) <= share * static_cast<double>(model));
      // First fit: whatever is urgent would not have fitted behind the late ones before it.
      for (std::size_t l = 0; l < bytes.size(); ++l) {
        if (chosen[l] || bytes[l] == 0) continue;
        double before = 0;
        for (std::size_t k = 0; k < bytes.size(); ++k)
          if (chosen[k] && std::pair(scores[k], k) < std::pair(scores[l], l))
            before += static_cast<double>(bytes[k]);
        CHECK(before + static_cast<double>(bytes[l]) > share * static_cast<double>(model));
      }
    }
  }
}

TEST_CASE("parameters/LateLayers: permuting layers permutes what is late", "[parameters]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto bytes = sizes(9, seed);
    std::vector<double> scores(9);
    std::iota(scores.begin(), scores.end(), 1.0);  // no two alike
    auto layers = make(bytes, 0.5);
    auto expected = late(layers, bytes, scores);
    std::size_t const by = 1 + seed % 8;
    auto const turn = [&](auto& list) {
      std::rotate(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(by), list.end());
    };
    turn(bytes), turn(scores), turn(expected);
    auto turned = make(bytes, 0.5);
    CHECK(late(turned, bytes, scores) == expected);
  }
}

TEST_CASE("parameters/LateLayers: scaling all gradients leaves what is late", "[parameters]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto const bytes = sizes(9, seed);
    auto scores = random_scores(9, seed);
    auto layers = make(bytes, 0.5);
    auto const expected = late(layers, bytes, scores);
    double const by = seed % 2 == 0 ? 1e-6 : 3e5;
    for (double& score : scores) score *= by;
    auto scaled = make(bytes, 0.5);
    CHECK(late(scaled, bytes, scores) == expected);
  }
}

TEST_CASE("parameters/LateLayers: of equal scores the first layers are late", "[parameters]") {
  std::vector<std::uint64_t> const bytes(10, 8);
  auto layers = make(bytes, 0.3);
  std::vector<bool> expected(10);
  expected[0] = expected[1] = expected[2] = true;
  CHECK(late(layers, bytes, std::vector<double>(10)) == expected);
}

TEST_CASE("parameters/LateLayers: O O3: 1000 layers take 125 bytes", "[parameters][papers]") {
  auto const layers = make(std::vector<std::uint64_t>(1000, 4), 0.5);
  CHECK(layers.late().bitmap.size() == 125);
}

TEST_CASE("parameters/LateLayers: refuses scores that are not finite, and more than the budget",
          "[parameters]") {
  std::vector<std::uint64_t> const bytes(3, 8);
  auto layers = make(bytes, 0.5);
  layers.add_loss(0, 1);
  layers.add_score(0, 1);
  layers.add_score(1, std::nan(""));
  CHECK_THROWS_WITH(layers.add_score(2, 1), Catch::Matchers::Contains("importance of layer 1"));
  auto greedy = make<Greedy>(bytes, 0.5);
  greedy.add_loss(0, 1);
  greedy.add_score(0, 1);
  greedy.add_score(1, 1);
  CHECK_THROWS_WITH(greedy.add_score(2, 1),
                    Catch::Matchers::Contains("sends 24 bytes late, where the budget is 12"));
}

TEMPLATE_TEST_CASE("parameters/LateLayers: nothing is late under a budget that is not positive",
                   "[parameters]", osp::FirstFit, osp::StopAtMisfit, osp::SplitLayer) {
  using Model =
      sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, TestType, Wrong>;
  std::vector<std::uint64_t> const bytes(3, 32);
  for (double const budget : {-1.0, -1e300, std::nan("")}) {
    CAPTURE(budget);
    Model const model{.budget = {budget}};
    sg::List<std::uint64_t> sizes;
    for (std::uint64_t const each : bytes) sizes.push_back(each);
    LateLayers layers(std::make_unique<sg::detail::LateChoiceOf<Model>>(model), std::move(sizes), 1,
                      1, true);
    CHECK(late(layers, bytes, {1, 2, 3}) == std::vector<bool>(3, false));
  }
}

TEST_CASE("parameters/LateLayers: of one layer the first elements may be late", "[parameters]") {
  std::vector<std::uint64_t> const bytes(3, 32);
  auto split = make<Halves<1>>(bytes, 0.5);
  CHECK(late(split, bytes, {3, 1, 2}) == std::vector<bool>{false, true, false});
  CHECK(split.late().bytes(1, 32) == 16);
  auto two = make<Halves<2>>(bytes, 0.8);
  two.add_loss(0, 1);
  two.add_score(0, 1);
  two.add_score(1, 1);
  CHECK_THROWS_WITH(two.add_score(2, 1), Catch::Matchers::Contains("splits layer 0 and layer 1"));
}

namespace {

/// Allows as many bytes as the loss says, times the workers.
struct Told {
  double bytes(sg::detail::EndedStep const& step) const { return step.loss * step.workers; }
};

}  // namespace

TEST_CASE("parameters/LateLayers: the choice waits for the losses of those who take part",
          "[parameters]") {
  using Model =
      sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, osp::FirstFit, Told>;
  Model const model{};
  sg::List<std::uint64_t> bytes;
  for (int l = 0; l < 4; ++l) bytes.push_back(8);
  LateLayers layers(std::make_unique<sg::detail::LateChoiceOf<Model>>(model), bytes, 3, 3, true);
  auto const scored = [&] {
    bool known = false;
    for (std::size_t l = 0; l < 4; ++l) known = layers.add_score(l, static_cast<double>(l));
    return known;
  };
  auto const late_count = [&] {
    int count = 0;
    for (std::size_t l = 0; l < 4; ++l) count += layers.late().bytes(l, 8) != 0 ? 1 : 0;
    return count;
  };
  // One goes without having reported, when everything else is there.
  CHECK_FALSE(layers.add_loss(0, 8));
  CHECK_FALSE(layers.add_loss(2, 4));
  CHECK(layers.between_steps());
  CHECK_FALSE(scored());
  CHECK_FALSE(layers.between_steps());
  CHECK(layers.lose(1));
  CHECK(layers.between_steps());
  CHECK(late_count() == 1);  // 6 times 2 bytes
  // One goes who has reported: its loss counts.
  CHECK_FALSE(layers.add_loss(1, 1000));  // it does not take part
  CHECK_FALSE(layers.add_loss(2, 24));
  CHECK_FALSE(layers.lose(2));
  CHECK_FALSE(layers.add_loss(0, 8));
  CHECK(scored());
  CHECK(late_count() == 4);  // 16 times 2
  // The second comes back: it is waited for, whatever it had reported.
  layers.come_back(1);
  CHECK_FALSE(layers.add_loss(0, 1));
  CHECK_FALSE(scored());
  CHECK(layers.add_loss(1, 23));
  CHECK(late_count() == 3);  // 12 times 2
  CHECK(layers.step() == 3);
  CHECK_FALSE(layers.lose(0));
  CHECK(layers.has_any());
  CHECK_FALSE(layers.lose(1));
  CHECK_FALSE(layers.has_any());
  layers.reset();
  CHECK(layers.step() == 0);
  CHECK(late_count() == 0);
}

namespace {

/// Everything is late once the policy has seen as many steps as it is told.
struct Counting {
  int seen = 0;
  friend bool operator==(Counting const&, Counting const&) = default;
  double bytes(sg::detail::EndedStep const& step) {
    return step.step == seen++ && seen >= 3 ? 8 : 0;
  }
};

}  // namespace

TEST_CASE("parameters/LateLayers: a budget keeps what it has seen when workers begin again",
          "[parameters]") {
  using Model =
      sg::staleness::OverlappedSynchronous<osp::ParameterGradientProduct, osp::FirstFit, Counting>;
  sg::List<std::uint64_t> bytes;
  bytes.push_back(8);
  LateLayers layers(std::make_unique<sg::detail::LateChoiceOf<Model>>(Model{}), bytes, 1, 1, true);
  auto const late_after_step = [&] {
    layers.add_score(0, 1);
    REQUIRE(layers.add_loss(0, 1));
    return layers.late().bytes(0, 8) != 0;
  };
  CHECK_FALSE(late_after_step());
  CHECK_FALSE(late_after_step());
  CHECK(late_after_step());
  layers.add_score(0, 1);  // of a step that fails
  layers.reset();
  CHECK(layers.late().bytes(0, 8) == 0);
  CHECK(late_after_step());
  CHECK(layers.step() == 1);
  layers.forget();
  CHECK_FALSE(late_after_step());
  CHECK_FALSE(late_after_step());
  CHECK(late_after_step());
}

}  // namespace late_layers_test
