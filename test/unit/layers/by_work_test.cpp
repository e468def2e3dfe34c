// SPDX-License-Identifier: Apache-2.0
#include "layers/by_work.hpp"

#include <random>

#include "catch.hpp"

namespace by_work_test {

namespace {

double busiest(std::vector<double> const& work, std::vector<int> cuts) {
  cuts.push_back(static_cast<int>(work.size()));
  double most = 0;
  int begin = 0;
  for (int const end : cuts) {
    double sum = 0;
    for (int l = begin; l < end; ++l) sum += work[static_cast<std::size_t>(l)];
    most = std::max(most, sum);
    begin = end;
  }
  return most;
}

/// Tries every cut.
double best(std::vector<double> const& work, int stages) {
  int const layers = static_cast<int>(work.size());
  double least = 1e300;
  for (unsigned set = 0; set < 1U << static_cast<unsigned>(layers - 1); ++set) {
    std::vector<int> cuts;
    for (int l = 1; l < layers; ++l)
      if (set >> static_cast<unsigned>(l - 1) & 1U) cuts.push_back(l);
    if (static_cast<int>(cuts.size()) == stages - 1) least = std::min(least, busiest(work, cuts));
  }
  return least;
}

}  // namespace

TEST_CASE("layers/ByWork: the busiest stage has as little work as any cut gives", "[layers]") {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> work(1 + random() % 9);
    for (double& w : work) w = round % 3 == 0 ? 1 : static_cast<double>(random() % 1000) / 10;
    for (int stages = 1; stages <= static_cast<int>(work.size()); ++stages) {
      auto const cuts = layers::ByWork{work, stages}.cuts(static_cast<int>(work.size()));
      INFO(work.size() << " layers, " << stages << " stages, round " << round);
      REQUIRE(static_cast<int>(cuts.size()) == stages - 1);
      for (std::size_t i = 0; i < cuts.size(); ++i) CHECK(cuts[i] > (i == 0 ? 0 : cuts[i - 1]));
      if (!cuts.empty()) CHECK(cuts.back() < static_cast<int>(work.size()));
      CHECK(busiest(work, cuts) <= best(work, stages) * (1 + 1e-9));
    }
  }
}

TEST_CASE("layers/ByWork: more stages than layers, or none, are refused", "[layers]") {
  for (int stages : {0, -1, 3})
    CHECK_THROWS_WITH((layers::ByWork{{1, 1}, stages}.cuts(2)), Catch::Contains("use 1 to 2"));
}

}  // namespace by_work_test
