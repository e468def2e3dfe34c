// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/replicas.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <stagger/host/threads.hpp>
#include <stagger/program/check_program.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/program/shared_checks.hpp>
#include <stagger/program/version_passes.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/pipe_dream.hpp>
#include <stagger/schedule/pipe_dream_2bw.hpp>
#include <stagger/sim/clock.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/delayed.hpp>
#include <stagger/staleness/double_buffered.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/weight_stashing.hpp>
#include <stagger/train/pipeline.hpp>

#include "train/plain_layers.hpp"

namespace replicated_streams_test {

namespace sg = stagger;

namespace {

using plain_layers::Numbers;
using plain_layers::on_each_device;
using plain_layers::updates_before;
using plain_layers::width;

sg::optimizer::AdamW const adam{.rate = 0.05, .weight_decay = 0.1};

/// Several inputs of a plain layer.
struct Rows {
  std::vector<Numbers> of;
  [[nodiscard]] std::size_t rows() const { return of.size(); }
  void resize_rows(Rows const&, std::size_t count) { of.resize(count); }
  void copy_rows(std::size_t at, Rows const& from, std::size_t first, std::size_t count) {
    for (std::size_t r = 0; r < count; ++r) of[at + r] = from.of[first + r];
  }
};

struct RowLayer {
  using Input = Rows;
  using Output = Rows;
  struct Saved {
    Rows y;
  };
  sg::Parameter<> weight;
  int fail_at = -1;
  int spoil_at = -1;  // microbatch in which the gradient of the first row is no number
  explicit RowLayer(int stage) : weight("weight", plain_layers::initial(stage)) {}
  auto parameters() { return std::tie(weight); }
  void forward(sg::Context& context, Rows const& x, Rows& y, Saved& saved) {
    if (context.training() && context.microbatch() == fail_at && context.first_row() != 0)
      throw std::runtime_error("out of ink");
    auto const w = context[weight];
    y.of.resize(x.rows());
    for (std::size_t r = 0; r < x.rows(); ++r)
      plain_layers::forward(Numbers(w.begin(), w.end()), x.of[r], y.of[r]);
    saved.y = y;
  }
  void backward(sg::Context& context, Rows const& x, Rows const& dy, Rows& dx, Saved& saved) {
    auto const w = context[weight];
    auto const gradient = context.gradient(weight);
    dx.of.resize(x.rows());
    for (std::size_t r = 0; r < x.rows(); ++r)
      plain_layers::backward(Numbers(w.begin(), w.end()), x.of[r], saved.y.of[r], dy.of[r],
                             dx.of[r], gradient.data());
    if (context.microbatch() == spoil_at && context.first_row() != 0)
      gradient[gradient.size() - 1] = std::numeric_limits<float>::quiet_NaN();
  }
};

struct RowLoss {
  using policy_tag = sg::LossTag;
  using Target = Rows;
  double terms(Rows const& t) const { return static_cast<double>(t.rows() * width); }
  double value(sg::Context& context, Rows const& y, Rows const& t) const {
    double sum = 0;
    for (std::size_t r = 0; r < y.rows(); ++r)
      sum += plain_layers::Loss{}.value(context, y.of[r], t.of[r]);
    return sum;
  }
  double value_and_gradient(sg::Context& context, Rows const& y, Rows const& t, double scale,
                            Rows& dy) const {
    dy.of.resize(y.rows());
    double sum = 0;
    for (std::size_t r = 0; r < y.rows(); ++r)
      sum += plain_layers::Loss{}.value_and_gradient(context, y.of[r], t.of[r], scale, dy.of[r]);
    return sum;
  }
};

using Batch = sg::Batch<Rows, Rows>;

/// @param rows  of each microbatch, at least
Batch data(int count, std::size_t rows) {
  Batch batch;
  for (int m = 0; m < count; ++m) {
    auto const plain = plain_layers::data(static_cast<int>(rows) + m % 3, 10.0 * m);
    batch.inputs.push_back({plain.inputs});
    batch.targets.push_back({plain.targets});
  }
  return batch;
}

using Shares = std::vector<std::vector<std::size_t>>;  // [stages][replicas]

sg::Replicas replicas_of(Shares const& shares) {
  auto const one = [](std::vector<std::size_t> const& own) {
    bool const even = std::all_of(own.begin(), own.end(), [&](auto s) { return s == own[0]; });
    auto const at = [&](std::size_t k) { return static_cast<int>(own[k]); };
    if (even) return sg::Replicas::Shares(static_cast<int>(own.size()));
    return own.size() == 2 ? sg::Replicas::Shares{at(0), at(1)}
                           : sg::Replicas::Shares{at(0), at(1), at(2)};
  };
  switch (shares.size()) {
    case 1:
      return {one(shares[0])};
    case 2:
      return {one(shares[0]), one(shares[1])};
    case 3:
      return {one(shares[0]), one(shares[1]), one(shares[2])};
    default:
      return {one(shares[0]), one(shares[1]), one(shares[2]), one(shares[3])};
  }
}

/// Keeps every version of every stage and never runs two minibatches at once. Each replica adds up
/// the gradients of its rows, and the sums are added in the order of replicas.
/// @param version  (stage, minibatch) -> how many updates the weights contain that it sees
std::vector<Numbers> sequential(Shares const& shares, Batch const& batch, std::size_t microbatches,
                                std::function<int(int, int)> const& version) {
  std::size_t const stages = shares.size();
  std::vector<std::vector<Numbers>> weights(stages);  // [stages][versions]
  std::vector<Numbers> first(stages, Numbers(width * width + width));
  std::vector<Numbers> second = first;
  for (std::size_t s = 0; s < stages; ++s)
    weights[s].push_back(plain_layers::initial(static_cast<int>(s)));
  sg::Context context;
  for (std::size_t k = 0; k < batch.inputs.size() / microbatches; ++k) {
    auto const seen = [&](std::size_t s) -> Numbers const& {
      return weights[s]
                    [static_cast<std::size_t>(version(static_cast<int>(s), static_cast<int>(k)))];
    };
    double terms = 0;
    std::vector<std::vector<Numbers>> gradients;  // [stages][replicas]
    for (auto const& own : shares)
      gradients.emplace_back(own.size(), Numbers(width * width + width));
    for (std::size_t m = k * microbatches; m < (k + 1) * microbatches; ++m)
      terms += RowLoss{}.terms(batch.targets[m]);
    for (std::size_t m = k * microbatches; m < (k + 1) * microbatches; ++m) {
      std::vector<Rows> value{batch.inputs[m]};
      std::size_t const rows = value[0].rows();
      for (std::size_t s = 0; s < stages; ++s) {
        value.emplace_back().of.resize(rows);
        for (std::size_t r = 0; r < rows; ++r)
          plain_layers::forward(seen(s), value[s].of[r], value[s + 1].of[r]);
      }
      Rows dy;
      RowLoss{}.value_and_gradient(context, value.back(), batch.targets[m], 1 / terms, dy);
      for (std::size_t s = stages; s-- > 0;) {
        Rows dx{std::vector<Numbers>(rows)};
        std::size_t total = 0;
        for (std::size_t const share : shares[s]) total += share;
        std::size_t before = 0;
        for (std::size_t k2 = 0; k2 < shares[s].size(); before += shares[s][k2++])
          for (std::size_t r = rows * before / total; r < rows * (before + shares[s][k2]) / total;
               ++r)
            plain_layers::backward(seen(s), value[s].of[r], value[s + 1].of[r], dy.of[r], dx.of[r],
                                   gradients[s][k2].data());
        dy = dx;
      }
    }
    for (std::size_t s = 0; s < stages; ++s) {
      Numbers sum = gradients[s][0];
      for (std::size_t r = 1; r < gradients[s].size(); ++r)
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradients[s][r][i];
      Numbers next(sum.size());
      sg::OptimizerView<float> view;
      view.value = weights[s].back().data();
      view.next = next.data();
      view.gradient = sum.data();
      view.state = {first[s].data(), second[s].data()};
      view.size = next.size();
      adam.update(view, 1, static_cast<std::int64_t>(k) + 1);
      weights[s].push_back(next);
    }
  }
  std::vector<Numbers> last;
  for (auto const& versions : weights) last.push_back(versions.back());
  return last;
}

template <class Schedule, class Staleness, class Device>
auto make(Shares const& shares, Schedule schedule, Staleness staleness, Device device,
          sg::Options options = {}, int fail_at = -1, int spoil_at = -1) {
  std::vector<RowLayer> layers;
  for (std::size_t s = 0; s < shares.size(); ++s) layers.emplace_back(static_cast<int>(s));
  layers.back().fail_at = fail_at;
  layers.front().spoil_at = spoil_at;
  options.replicas = replicas_of(shares);
  return sg::Pipeline{std::move(layers)}.with(schedule, staleness, RowLoss{}, adam, device,
                                              options);
}

std::vector<Shares> const all_shares{{{1, 1}},
                                     {{1, 1}, {1}},
                                     {{1}, {1, 1, 1}},
                                     {{3, 1}, {1, 1}},
                                     {{1, 1, 1}, {2, 1}, {1}},
                                     {{1, 1}, {1, 1, 1, 1}, {1}, {1, 2, 1}}};

}  // namespace

TEST_CASE("staleness/Replicas: PipeDream's replicated stages have the bits of one sum per update",
          "[staleness]") {
  for (auto const& shares : all_shares)
    for (int const count : {1, 3, 11}) {
      int const P = static_cast<int>(shares.size());
      CAPTURE(P, shares[0].size(), count);
      auto const batch = data(count, 4);
      auto const table = sg::schedule::PipeDream{}.table({P, count, 1});
      auto const expected = sequential(
          shares, batch, 1, [&](int stage, int m) { return updates_before(table, stage, m); });
      for (bool const recompute : {false, true})
        on_each_device([&](auto device) {
          auto train = make(shares, sg::schedule::PipeDream{}, sg::staleness::WeightStashing{},
                            device, {.recompute = recompute});
          sg::run(train.stream(batch));
          CHECK(plain_layers::weights(train) == expected);
          CHECK(train.steps() == count);
          for (auto const& cell : train.program(static_cast<std::size_t>(count)).cells)
            CHECK(static_cast<int>(cell.versions) <= std::min(P - cell.position, count));
        });
    }
}

TEST_CASE("staleness/Replicas: Fifo and PipeDream-2BW, too, in streams one after the other",
          "[staleness]") {
  for (auto const& shares : all_shares) {
    int const P = static_cast<int>(shares.size());
    CAPTURE(P, shares[0].size());
    for (int const in_flight : {1, 3}) {
      auto const batch = data(9, 4);
      auto const expected =
          sequential(shares, batch, 1, [&](int, int m) { return std::max(0, m + 1 - in_flight); });
      on_each_device([&](auto device) {
        auto train = make(shares, sg::schedule::Fifo{in_flight}, sg::staleness::Delayed{}, device);
        sg::run(train.stream(batch));
        CHECK(plain_layers::weights(train) == expected);
      });
    }
    int const each = P + 1;
    auto const batch = data(4 * each, 4);
    auto const expected = sequential(shares, batch, static_cast<std::size_t>(each),
                                     [](int, int k) { return std::max(0, k - 1); });
    on_each_device([&](auto device) {
      auto train =
          make(shares, sg::schedule::PipeDream2BW{}, sg::staleness::DoubleBuffered{each}, device);
      sg::run(train.stream(batch));
      CHECK(plain_layers::weights(train) == expected);
      auto const once = plain_layers::weights(train);
      sg::run(train.stream(batch));
      CHECK(plain_layers::weights(train) != once);
      CHECK(train.steps() == 8);
    });
  }
}

TEST_CASE("staleness/Replicas: a stream in which one replica fails brings back what was before it",
          "[staleness]") {
  Shares const shares{{1, 1}, {1, 1, 1}};
  auto const batch = data(7, 6);
  for (bool const spoils : {false, true})
    on_each_device([&](auto device) {
      auto broken = make(shares, sg::schedule::PipeDream{}, sg::staleness::WeightStashing{}, device,
                         {}, spoils ? -1 : 5, spoils ? 5 : -1);
      auto const before = plain_layers::weights(broken);
      CHECK_THROWS_WITH(sg::run(broken.stream(batch)),
                        Catch::Contains(spoils ? "a gradient of layer 0 on rank 1 is not finite in "
                                                 "minibatch 5"
                                               : "out of ink"));
      CHECK(plain_layers::weights(broken) == before);
      CHECK(broken.steps() == 0);
      auto const shorter = data(5, 6);
      sg::run(broken.stream(shorter));
      auto fresh = make(shares, sg::schedule::PipeDream{}, sg::staleness::WeightStashing{}, device);
      sg::run(fresh.stream(shorter));
      CHECK(plain_layers::weights(broken) == plain_layers::weights(fresh));
    });
}

TEST_CASE("staleness/Replicas: traffic has each replica's parts of every update", "[staleness]") {
  auto train = make({{1, 1, 1}, {1}}, sg::schedule::PipeDream{}, sg::staleness::WeightStashing{},
                    sg::host::Threads{2});
  auto const batch = data(4, 6);
  sg::run(train.stream(batch));
  // A layer of 48 bytes is one cache line, which one replica adds up: the other two send theirs.
  sg::TrafficCount sums;
  for (int r = 0; r < 3; ++r) sums += train.traffic().of(r, sg::TrafficKind::gradient_sums);
  CHECK(sums.messages == 4 * 2);
  CHECK(sums.bytes == 4 * 2 * 64);
  CHECK(train.traffic().of(3, sg::TrafficKind::gradient_sums).messages == 0);
}

TEST_CASE("staleness/Replicas: in virtual time each update takes one sum, and no other step does",
          "[staleness]") {
  for (bool const line : {false, true}) {
    auto const ended_at = [&](Shares const& shares, auto schedule, auto staleness, double sum_s) {
      sg::sim::Clock const time;
      sg::sim::VirtualClock device{.costs = sg::schedule::Costs::uniform(1, 1, 1), .clock = time};
      if (line)
        device.sum.startup_s = sum_s;
      else
        device.costs.each.reduce_s = sum_s;
      auto train = make(shares, schedule, staleness, device);
      auto const batch = data(6, 4);
      if constexpr (decltype(staleness)::synchronous)
        sg::run(train.step(batch));
      else
        sg::run(train.stream(batch));
      return time.now_s();
    };
    using sg::staleness::Synchronous;
    using sg::staleness::WeightStashing;
    sg::schedule::PipeDream const stream;
    sg::schedule::OneFOneB const step;
    // Of a microbatch each of two replicas takes half the time.
    CHECK(ended_at({{1, 1}}, stream, WeightStashing{}, 0) == Approx(6 * 1.5));
    CHECK(ended_at({{1, 1}}, stream, WeightStashing{}, 5) == Approx(6 * 6.5));
    CHECK(ended_at({{1}, {1}}, stream, WeightStashing{}, 5) ==
          ended_at({{1}, {1}}, stream, WeightStashing{}, 0));
    CHECK(ended_at({{1}, {1}}, step, Synchronous{}, 5) ==
          ended_at({{1}, {1}}, step, Synchronous{}, 0));
    CHECK(ended_at({{1, 1}}, step, Synchronous{}, 5) == Approx(6 * 1.5 + 5));
  }
}

TEST_CASE(
    "staleness/Replicas: a program in which a replica does not wait for the others is refused",
    "[staleness]") {
  auto train = make({{1, 1}, {1, 1}}, sg::schedule::PipeDream{}, sg::staleness::WeightStashing{},
                    sg::host::Threads{1});
  sg::Program const sound = train.program(4);
  auto const table = sg::schedule::PipeDream{}.table({2, 4, 1});
  sg::LayOutOptions options;
  options.replicas = &train.machine().options().replicas;
  options.shared = options.replicas->part()->passes();
  sg::staleness::WeightStashing const policy;
  options.staleness = sg::detail::staleness_model<false>(policy);
  sg::require_sound(sound, table, options);
  int refused = 0;
  for (std::size_t r = 0; r < sound.ranks.size(); ++r) {
    std::size_t wait = 0;
    for (std::size_t i = 0; i < sound.ranks[r].code.size(); ++i) {
      auto const& in = sound.ranks[r].code[i];
      bool const waits = in.updates_part() || (in.op == sg::Op::pass && in.waits != 0);
      // Of the last update a check of all signals would notice it, too.
      bool const last = waits && sound.ranks[r].waits[wait].count == 4;
      if (waits && !last) {
        sg::Program broken = sound;
        auto& rank = broken.ranks[r];
        sg::List<sg::Wait> kept;
        for (std::size_t w = 0; w < rank.waits.size(); ++w)
          if (w < wait || w >= wait + in.waits) kept.push_back(rank.waits[w]);
        rank.waits = kept;
        rank.code[i].waits = 0;
        CAPTURE(r, i);
        CHECK_THROWS_WITH(
            sg::require_sound(broken, table, options),
            Catch::Contains("that rank " + std::to_string(r ^ 1U) + " may still use or change"));
        ++refused;
      }
      if (in.updates_part()) {
        sg::Program broken = sound;
        auto& other = broken.ranks[r].code[i];
        other.set_part(static_cast<std::uint16_t>(1 - in.part()), 2);
        CHECK_THROWS_WITH(sg::require_sound(broken, table, options),
                          Catch::Contains("which is not its own"));
      }
      wait += in.waits;
    }
  }
  for (bool const slots : {true, false}) {  // all replicas share the memory of versions
    sg::Program broken = sound;
    if (!slots) ++broken.cells[1].versions;
    auto const other = [](std::uint16_t slot) { return static_cast<std::uint16_t>(1 - slot); };
    for (auto& in : broken.ranks[1].code)
      if (slots && in.op == sg::Op::apply && in.update() == 1)
        in.next_version = other(in.next_version);
    CHECK_THROWS_WITH(sg::require_sound(broken, table, options),
                      Catch::Contains("than the others that hold its stage"));
  }
  CHECK(refused == 2 * 3 * 4);
}

}  // namespace replicated_streams_test
