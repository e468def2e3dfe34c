// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "engine/row_oracle.hpp"
#include "trap_model.hpp"
#include "world.hpp"

namespace library_sums_test {

// Gradients of replicas in several processes, added up by MPI_Iallreduce. Each assertion holds in
// every process.

using namespace small_model;
namespace collective = sg::collective;
namespace grouping = sg::collective::grouping;
using collective::By;

namespace {

template <class Device, class Policy>
auto trained(Device device, Policy policy, std::vector<int> cuts, Made schedule,
             sg::Options options) {
  options.seed = run_seed;
  return sg::Pipeline{row_model::model()}.with(sg::partition::Cuts{std::move(cuts)},
                                               std::move(schedule), Loss{}, optimizer(),
                                               std::move(device), policy, options);
}

/// Largest relative distance of two models' parameters.
template <class A, class B> double distance(A& a, B& b) {
  double worst = 0;
  auto const x = a.parameters();
  auto const y = b.parameters();
  REQUIRE(x.size() == y.size());
  for (std::size_t p = 0; p < x.size(); ++p) {
    REQUIRE(x[p].value.size() == y[p].value.size());
    auto const compare = [&]<class T>(T) {
      for (std::size_t at = 0; at < x[p].value.size(); at += sizeof(T)) {
        T v{}, w{};
        std::memcpy(&v, x[p].value.data() + at, sizeof(T));
        std::memcpy(&w, y[p].value.data() + at, sizeof(T));
        double const scale = std::max(1e-2, static_cast<double>(std::abs(w)));
        worst = std::max(worst, static_cast<double>(std::abs(v - w)) / scale);
      }
    };
    if (x[p].type == sg::ElementType::f32)
      compare(float{});
    else
      compare(double{});
  }
  return worst;
}

}  // namespace

TEST_CASE(
    "mpi/LibrarySums: replicas agree with one device to rounding, and with each other to the bit",
    "[mpi]") {
  int const n = processes();
  if (n == 1) return;
  struct Case {
    Made schedule;
    std::vector<int> cuts;
    sg::Replicas replicas;
  };
  using namespace sg::schedule;
  std::vector<Case> cases{{made(GPipe{}), {}, {n}}};
  if (n == 3) cases.push_back({made(OneFOneB{}), {4}, {2, 1}});
  if (n == 4) cases.push_back({made(OneFOneB{}), {4}, {2, 2}});
  if (n == 4) cases.push_back({made(OneFOneB{}), {2}, {1, 3}});
  unsigned number = 0;
  for (Case const& one : cases) {
    auto const check = [&](auto policy) {
      sg::Options options;
      options.replicas = one.replicas;
      options.record = number % 2 == 0;
      if (number++ % 2 == 1) options.clip_norm = clip;
      policy.by = By::library;
      auto library = trained(sg::mpi::Processes{}, policy, one.cuts, one.schedule, options);
      policy.by = By::slices;
      auto slices = trained(sg::mpi::Processes{}, policy, one.cuts, one.schedule, options);
      options.replicas = {};
      auto alone =
          trained(sg::host::Threads{1}, collective::AllReduce<>{}, one.cuts, one.schedule, options);
      CAPTURE(n, number, one.cuts.size(), one.replicas.parts().size());
      for (int s = 0; s < 6; ++s) {
        auto const batch = row_model::batch(s, 4, 12, true);
        double const loss = sg::run(library.step(batch)).loss;
        double const exact = sg::run(slices.step(batch)).loss;
        CHECK(loss == Approx(sg::run(alone.step(batch)).loss).epsilon(1e-4));
        if (one.replicas.counts()[0] <= 2 && n < 4) CHECK(loss == exact);
      }
      if (options.record) {
        auto const sums = library.reductions();
        REQUIRE(sums.ranks() > 0);
        for (int r = 0; r < sums.ranks(); ++r) CHECK(!sums.row(r).empty());
        for (auto const& span : sums.row(0)) CHECK(span.end_s > span.start_s);
      }
      std::vector<std::byte> own;  // of the stages that this process runs
      for (auto const& state : library.own_parameters())
        own.insert(own.end(), state.value.begin(), state.value.end());
      library.gather_parameters();
      slices.gather_parameters();
      CHECK(distance(library, alone) < 1e-3);
      CHECK(distance(library, slices) < 1e-3);
      if (n == 2) CHECK(bits(library) == bits(slices));
      if (one.cuts.empty()) {  // all processes hold all of it
        std::vector<std::byte> first = own;
        MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
        CHECK(first == own);
      }
    };
    check(collective::AllReduce<>{.measured_steps = 1, .renew_every = 2});
    check(collective::AllReduce<grouping::Layerwise>{});
    check(collective::AllReduce<grouping::Single>{});
    check(collective::AllReduce<grouping::Bucket>{.grouping = {100}});
    check(collective::AllReduce<grouping::Layerwise>{.shard_optimizer = true});
    check(collective::AllReduce<grouping::Layerwise>{.shard_optimizer = true});  // and clips
  }
}

TEST_CASE("mpi/LibrarySums: replicas that share a process are refused, naming what to do",
          "[mpi]") {
  int const n = processes();
  sg::Options options;
  options.replicas = {n + 1};
  auto train = trained(sg::mpi::Processes{}, collective::AllReduce<>{.by = By::library}, {},
                       made(sg::schedule::GPipe{}), options);
  std::string const held = sg::text("stage 0 is held by ", n + 1, " ranks in ", n, " processes");
  CHECK_THROWS_WITH(sg::run(train.step(row_model::batch(0, 4, 12, true))),
                    Catch::StartsWith(held) && Catch::EndsWith("or use collective::By::slices"));
}

TEST_CASE("mpi/LibrarySums: processes that add up in different ways say so", "[mpi]") {
  if (processes() == 1) return;
  sg::Options options;
  options.replicas = {processes()};
  collective::AllReduce<> const policy{.by = process() == 0 ? By::slices : By::library};
  CHECK_THROWS_WITH(
      trained(sg::mpi::Processes{}, policy, {}, made(sg::schedule::GPipe{}), options),
      Catch::StartsWith("ranks disagree on AllReduce::by: rank 0 has 'slices', rank 1"));
}

TEST_CASE("mpi/LibrarySums: after a step that one process ended all take the next ones", "[mpi]") {
  if (processes() == 1) return;
  using namespace trap_model;
  sg::Options options{.deadline_s = 600};
  options.replicas = {processes()};
  auto const made = [&](auto device, By by) {
    return wide_stage().with(sg::partition::Cuts{}, RowSum{}, device, sg::optimizer::AdamW{},
                             options, collective::AllReduce<grouping::Layerwise>{.by = by});
  };
  auto const rows = [](int number) {
    auto const x = [&](int i) { return 0.01F * static_cast<float>(i + number); };
    return sg::Batch<Numbers, Numbers>{{{x(1), x(2), x(3), x(4)}, {x(5), x(6), x(7), x(8)}},
                                       {{1, 2, 3, 4}, {4, 5, 6, 7}}};
  };
  auto train = made(sg::mpi::Processes{}, By::library);
  auto alone = made(sg::host::Threads{1}, By::slices);
  for (int number = 0; number < 4; ++number) {
    double const loss = sg::run(train.step(rows(number))).loss;
    CHECK(loss == Approx(sg::run(alone.step(rows(number))).loss).epsilon(1e-4));
    // Layer 1 is being added up when layer 0 ends the step.
    if (number % processes() == process())
      trap = {0, 1, true, [] { throw std::runtime_error("no such word"); }};
    CHECK_THROWS_WITH(sg::run(train.step(rows(100))), Catch::EndsWith("no such word"));
    trap = {};
  }
}

}  // namespace library_sums_test
