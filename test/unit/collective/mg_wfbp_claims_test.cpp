// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/grouping.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <stagger/collective/alpha_beta.hpp>
#include <stagger/collective/line_fit.hpp>

#include "catch.hpp"
#include "collective/random_layers.hpp"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define READS_PROFILES 1
#else
#define READS_PROFILES 0
#endif

// What S. Shi, X. Chu, B. Li, "MG-WFBP", INFOCOM 2019, claims, and the results of the
// reproduction. The outcomes stand in docs/papers.md.

namespace mg_wfbp_claims_test {

using namespace stagger;
using namespace stagger::collective;
using collective_test::googlenet;
using collective_test::Layers;
using collective_test::resnet50;

namespace {

constexpr Link ethernet{45.26e-6, 0.8e-9, 0.114e-9};

/// Iteration times of one network at one size of cluster.
struct Times {
  double layerwise, single, greedy, optimal, compute;

  [[nodiscard]] double efficiency(double time) const { return compute / time; }
};

Times times(Layers const& layers, CostLine cost) {
  auto const of = [&](auto policy) {
    return evaluate(layers, policy.groups(layers, cost), cost).iteration_s;
  };
  return {of(grouping::Layerwise{}), of(grouping::Single{}), of(grouping::Greedy{}),
          of(grouping::Optimal{}), layers.compute_s()};
}

Times times(Layers const& layers, int nodes, Algorithm algorithm = Algorithm::ring) {
  return times(layers, cost(algorithm, nodes, ethernet));
}

Layers resnet() { return resnet50().timed(0.40); }
Layers google() { return googlenet().timed(0.28); }

double sum(std::vector<double> const& x) {
  double s = 0;
  for (double v : x) s += v;
  return s;
}

}  // namespace

TEST_CASE("collective/MG-WFBP: the networks have the published layers and parameters",
          "[collective]") {
  CHECK(resnet50().parameters.size() == 107);
  CHECK(resnet50(false).parameters.size() == 54);
  CHECK(sum(resnet50().parameters) == Approx(25.56e6).epsilon(0.001));
  CHECK(sum(resnet50().macs) == Approx(3.9e9).epsilon(0.03));
  CHECK(googlenet().parameters.size() == 64);
  CHECK(sum(googlenet().parameters) == Approx(13.38e6).epsilon(0.001));
  CHECK(sum(googlenet().macs) == Approx(1.6e9).epsilon(0.03));
}

TEST_CASE("collective/MG-WFBP: sizes per layer lie between 100 and 5 million parameters (R8)",
          "[collective]") {
  for (auto const& n : {resnet50(), googlenet()}) {
    CHECK(*std::min_element(n.parameters.begin(), n.parameters.end()) >= 1e2);
    CHECK(*std::max_element(n.parameters.begin(), n.parameters.end()) <= 5e6);
  }
  auto const all = resnet50().parameters;
  CHECK(*std::min_element(all.begin(), all.end()) == 128);
}

TEST_CASE("collective/MG-WFBP: GoogleNet on 64 nodes gains over both baselines (R3)",
          "[collective]") {
  auto const t = times(google(), 64);
  CHECK(t.layerwise / t.greedy == Approx(1.92).epsilon(0.01));
  CHECK(t.single / t.greedy == Approx(1.32).epsilon(0.01));
  CHECK((t.layerwise / t.greedy > 1.4 && t.layerwise / t.greedy < 2.4));  // published 1.78
  CHECK((t.single / t.greedy > 1.2 && t.single / t.greedy < 1.5));        // published 1.35
}

TEST_CASE("collective/MG-WFBP: ResNet-50 on 64 nodes scales nearly linearly (R4)", "[collective]") {
  auto const t = times(resnet(), 64);
  CHECK(t.layerwise / t.greedy == Approx(2.26).epsilon(0.01));
  CHECK(t.single / t.greedy == Approx(1.42).epsilon(0.01));
  CHECK((t.layerwise / t.greedy > 1.4 && t.layerwise / t.greedy < 2.4));  // published 1.75
  CHECK((t.single / t.greedy > 1.2 && t.single / t.greedy < 1.5));        // published 1.45
  CHECK(t.efficiency(t.greedy) >= 0.95);
  CHECK(std::abs(t.efficiency(t.greedy) - 0.99) < 0.01);
  CHECK(std::abs(t.efficiency(t.layerwise) - 0.44) < 0.01);
  CHECK(std::abs(t.efficiency(t.single) - 0.69) < 0.01);

  auto const plain =
      times(resnet50(false).timed(0.40), 64);  // convolutions and the dense layer only
  CHECK(plain.layerwise / plain.greedy == Approx(1.51).epsilon(0.01));
  CHECK(plain.single / plain.greedy == Approx(1.42).epsilon(0.01));
  CHECK(std::abs(plain.efficiency(plain.layerwise) - 0.65) < 0.01);
}

TEST_CASE("collective/MG-WFBP: layerwise leads at 4 to 16 nodes and falls behind single by 64 (R5)",
          "[collective]") {
  for (auto const& layers : {resnet(), google()}) {
    int crossing = 0;
    for (int n : {4, 8, 16, 32, 64}) {
      auto const t = times(layers, n);
      if (n <= 16) CHECK(t.layerwise < t.single);
      if (crossing == 0 && t.layerwise >= t.single) crossing = n;
    }
    CHECK(crossing > 16);
    CHECK(crossing <= 64);
  }
}

TEST_CASE(
    "collective/MG-WFBP: on 8 nodes the gain over single follows, that over layerwise does not "
    "(R6)",
    "[collective]") {
  for (auto const& [layers, single] : {std::pair{google(), 1.29}, std::pair{resnet(), 1.38}}) {
    auto const t = times(layers, 8);
    CHECK(t.single / t.greedy == Approx(single).epsilon(0.01));
    CHECK((t.single / t.greedy > 1.2 && t.single / t.greedy < 1.45));  // published 1.36
    CHECK(t.layerwise / t.greedy <
          1.02);  // published 1.2, which the published constants do not give
  }
}

TEST_CASE(
    "collective/MG-WFBP: 100 equal layers show where the published rule merges everything (R7)",
    "[collective]") {
  Layers layers{0.40 / 3, std::vector<double>(100, 0.40 * 2 / 300),
                std::vector<std::uint64_t>(100, 1'022'400)};
  struct {
    int nodes;
    double layerwise, single, greedy, optimal;
  } const rows[] = {{16, .4361, .5656, .4046, .4046},
                    {32, .5864, .5726, .5726, .4079},
                    {64, .8788, .5782, .5782, .4168}};
  for (auto const& r : rows) {
    auto const t = times(layers, r.nodes);
    CHECK(t.layerwise == Approx(r.layerwise).epsilon(0.005));
    CHECK(t.single == Approx(r.single).epsilon(0.005));
    CHECK(t.greedy == Approx(r.greedy).epsilon(0.005));
    CHECK(t.optimal == Approx(r.optimal).epsilon(0.005));
    CHECK(t.optimal <= t.greedy);
  }
  auto const line = cost(Algorithm::ring, 32, ethernet);
  CHECK(grouping::Greedy{}.groups(layers, line).size() == 1);
  CHECK(grouping::Optimal{}.groups(layers, line).size() > 1);
}

TEST_CASE("collective/MG-WFBP: layerwise is near linear at 2 and 4 nodes (R10)", "[collective]") {
  for (auto const& layers : {resnet(), google()}) {
    for (int n : {2, 4}) {
      auto const t = times(layers, n);
      CHECK(t.efficiency(t.layerwise) >= 0.95);
    }
  }
}

TEST_CASE("collective/MG-WFBP: with halving-doubling there is nothing left to gain over layerwise",
          "[collective]") {
  for (auto const& layers : {resnet(), google()}) {
    auto const t = times(layers, 64, Algorithm::halving_doubling);
    CHECK(t.layerwise / t.greedy == Approx(1.0).epsilon(0.01));
    CHECK((t.single / t.greedy > 1.25 && t.single / t.greedy < 1.45));
  }
}

TEST_CASE(
    "collective/MG-WFBP: measured layers and latencies give the published gains, the exact "
    "grouping more",
    "[collective]") {
  char const* const folder = std::getenv("STAGGER_PROFILES");
  if (folder == nullptr || *folder == '\0' || READS_PROFILES == 0) {
    WARN(
        "skipped: set STAGGER_PROFILES to the folder with the measured profiles, and install "
        "nlohmann-json");
    return;
  }
#if READS_PROFILES
  auto const read = [&](char const* name) {
    std::ifstream file(std::string(folder) + "/" + name);
    INFO(folder << "/" << name);
    REQUIRE(file.good());
    return nlohmann::json::parse(file);
  };
  Layers layers;
  auto const profile = read("bcaffe-googlenet-k80.json");
  for (auto const& l : profile.at("layers")) {
    layers.forward_s += l.at("forward_s").get<double>();
    layers.backward_s.push_back(l.at("backward_s").get<double>());
    layers.bytes.push_back(l.at("parameter_bytes").get<std::uint64_t>());
  }
  REQUIRE(layers.bytes.size() == 64);

  // The start-up is the paper's; of the ring's (N - 1) / N (2 beta + gamma) the bracket is fitted.
  double bracket = 0;
  auto const measured = read("bcaffe-osu-allreduce-10gbe.json");
  auto const& latencies = measured.at("nodes");
  REQUIRE(latencies.size() == 3);
  for (auto const& [nodes, rows] : latencies.items()) {
    double const n = std::stod(nodes);
    std::vector<Sample> samples;
    for (auto const& row : rows) {
      samples.push_back({row.at(0).get<std::uint64_t>(), row.at(1).get<double>() * 1e-6});
    }
    auto const fit =
        fit_per_byte(samples, cost(Algorithm::ring, static_cast<int>(n), ethernet).startup_s);
    bracket += fit.line.per_byte_s * n / (n - 1) / 3;
  }
  CostLine const line{cost(Algorithm::ring, 64, ethernet).startup_s, bracket * 63 / 64};
  auto const t = times(layers, line);
  CAPTURE(line.startup_s, line.per_byte_s, t.layerwise, t.single, t.greedy, t.optimal);
  CHECK(std::abs(t.layerwise / t.greedy / 1.78 - 1) < 0.05);
  CHECK(std::abs(t.single / t.greedy / 1.35 - 1) < 0.05);
  CHECK(t.greedy / t.optimal > 1.10);
#endif
}

}  // namespace mg_wfbp_claims_test
