// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/groups.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/random.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/even.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/program/check_program.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/schedule/named.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/describe.hpp>
#include <stagger/train/pipeline.hpp>

#include "full.hpp"
#include "split_model.hpp"

namespace groups_test {

using namespace split_model;

namespace {

/// Two steps beside one device. @return how far they come apart
template <class T, class Device> double apart(Device device, Case const& of) {
  auto train = pipeline<T>(std::move(device), of);
  auto one = one_device<T>(of);
  CHECK(difference<T>(train, one) == 0);
  for (int step = 0; step < 2; ++step) {
    auto const data = batch<T>(step, of.microbatches, 17);
    auto const metrics = sg::run(train.step(data));
    auto const expected = one.step(data);
    CHECK(metrics.loss == Approx(expected.loss).epsilon(sizeof(T) == 4 ? 1e-4 : 1e-10));
    CHECK(metrics.gradient_norm ==
          Approx(expected.gradient_norm).epsilon(sizeof(T) == 4 ? 1e-4 : 1e-10));
  }
  return difference<T>(train, one);
}

}  // namespace

TEST_CASE("engine/groups: three dense layers split in two, on one thread, as on one device",
          "[engine]") {
  auto const chain = [] {
    return sg::Sequential{Linear<double>{inputs, 8, 1}, Linear<double>{8, 9, 2},
                          Linear<double>{9, outputs, 3}};
  };
  auto train = sg::Pipeline{chain()}.with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
                                          sg::loss::MeanSquaredError<double>{}, optimizer(),
                                          sg::host::Threads{1}, sg::Options{.replicas = {2}});
  auto one = sg::Pipeline{chain()}.on_one_device(sg::loss::MeanSquaredError<double>{}, optimizer());
  CHECK(train.ranks() == 2);
  CHECK(train.stages() == 1);
  for (int step = 0; step < 3; ++step) {
    auto const data = batch<double>(step, 2, 5);
    sg::run(train.step(data));
    one.step(data);
    CHECK(difference<double>(train, one) < 1e-12);
  }
}

namespace {

/// y = x * scale, feature by feature.
struct Scale {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  sg::Parameter<double> scale{"scale", Linear<double>::numbers(7, 5)};
  auto parameters() { return std::tie(scale); }
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * context[scale][i % scale.size()];
  }
  void backward_input(sg::Context& context, Input const&, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    dx.resize_like(dy);
    for (std::size_t i = 0; i < dy.size(); ++i) dx[i] = dy[i] * context[scale][i % scale.size()];
  }
  void backward_weight(sg::Context& context, Input const& x, Output const& dy,
                       sg::NothingSaved&) const {
    auto const gradient = context.gradient(scale);
    for (std::size_t i = 0; i < x.size(); ++i) gradient[i % scale.size()] += dy[i] * x[i];
  }
};

/// y = b (a x)^2 + bias, with some rows of a and columns of b.
struct Squares {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  static constexpr std::size_t features = 7;
  std::size_t middle = 5;
  sg::Parameter<double> a{"a", Linear<double>::numbers(middle* features, 2)};  // [middle][features]
  sg::Parameter<double> b{"b", Linear<double>::numbers(middle* features, 3)};  // likewise
  sg::Parameter<double> bias{"bias", Linear<double>::numbers(features, 4)};
  auto parameters() { return std::tie(a, b, bias); }

  [[nodiscard]] std::size_t inputs() const { return features; }
  [[nodiscard]] std::size_t outputs() const { return features; }
  [[nodiscard]] std::size_t hidden() const { return middle; }
  [[nodiscard]] std::size_t operations() const { return 2 * middle * features; }
  [[nodiscard]] Squares part(int member, int members, sg::SplitBy by) const {
    if (by != sg::SplitBy::hidden) throw std::runtime_error("split otherwise");
    auto const own = sg::features_of(static_cast<std::size_t>(member),
                                     static_cast<std::size_t>(members), middle);
    Squares part = *this;
    part.middle = own.size();
    sg::ParameterPiece const rows{.first = own.first * features, .length = own.size() * features};
    part.a = a.piece(rows);
    part.b = b.piece(rows);
    part.bias = bias.piece({.length = member == 0 ? features : 0});
    return part;
  }

  [[nodiscard]] double at(sg::Context& context, Input const& x, std::size_t r,
                          std::size_t m) const {
    double sum = 0;
    for (std::size_t i = 0; i < features; ++i)
      sum += context[a][m * features + i] * x[r * features + i];
    return sum;
  }
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    y.resize_like(x);
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] = bias.size() == 0 ? 0 : context[bias][i % features];
    for (std::size_t r = 0; r < x.extent(0); ++r)
      for (std::size_t m = 0; m < middle; ++m) {
        double const u = at(context, x, r, m);
        for (std::size_t i = 0; i < features; ++i)
          y[r * features + i] += context[b][m * features + i] * u * u;
      }
  }
  void backward_input(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    dx.resize_like(x);
    dx.fill(0);
    each(context, x, dy, [&](std::size_t r, std::size_t m, double, double du) {
      for (std::size_t i = 0; i < features; ++i)
        dx[r * features + i] += du * context[a][m * features + i];
    });
  }
  void backward_weight(sg::Context& context, Input const& x, Output const& dy,
                       sg::NothingSaved&) const {
    each(context, x, dy, [&](std::size_t r, std::size_t m, double u, double du) {
      for (std::size_t i = 0; i < features; ++i) {
        context.gradient(a)[m * features + i] += du * x[r * features + i];
        context.gradient(b)[m * features + i] += dy[r * features + i] * u * u;
      }
    });
    for (std::size_t i = 0; i < dy.size() && bias.size() != 0; ++i)
      context.gradient(bias)[i % features] += dy[i];
  }
  template <class Visit>
  void each(sg::Context& context, Input const& x, Output const& dy, Visit visit) const {
    for (std::size_t r = 0; r < x.extent(0); ++r)
      for (std::size_t m = 0; m < middle; ++m) {
        double slope = 0;
        for (std::size_t i = 0; i < features; ++i)
          slope += context[b][m * features + i] * dy[r * features + i];
        double const u = at(context, x, r, m);
        visit(r, m, u, 2 * u * slope);
      }
  }
};

/// Both, which groups take as two.
struct ScaledSquares {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  struct Saved {
    Matrix<double> middle, slope;
    [[nodiscard]] std::uint64_t bytes() const { return middle.bytes() + slope.bytes(); }
  };
  Scale first;
  Squares second;
  sg::NothingSaved nothing;
  auto parameters() { return std::tie(first.scale, second.a, second.b, second.bias); }
  [[nodiscard]] std::pair<Scale, Squares> divided() const { return {first, second}; }
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) {
    first.forward(context, x, saved.middle, nothing);
    second.forward(context, saved.middle, y, nothing);
  }
  void backward_input(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) {
    second.backward_input(context, saved.middle, dy, saved.slope, nothing);
    first.backward_input(context, x, saved.slope, dx, nothing);
  }
  void backward_weight(sg::Context& context, Input const& x, Output const& dy, Saved& saved) {
    second.backward_weight(context, saved.middle, dy, nothing);
    first.backward_weight(context, x, saved.slope, nothing);
  }
};

}  // namespace

TEST_CASE("engine/groups: layers split inside, behind what every member has, as on one device",
          "[engine]") {
  auto const chain = [] {
    return sg::Sequential{Linear<double>{inputs, 7, 1, false}, std::vector<ScaledSquares>(2),
                          Squash<double>{}, Linear<double>{7, outputs, 5, false}};
  };
  for (int const members : {2, 3, 5})
    for (std::vector<int> const& first_layers :
         {std::vector<int>{}, std::vector{1}, std::vector{2}, std::vector{1, 3}}) {
      CAPTURE(members, first_layers.size());
      int const groups = first_layers.size() == 1 ? 2 : 1;
      auto train = sg::Pipeline{chain()}.with(
          sg::partition::LayerSplit<>{members, {first_layers}, 0},
          sg::loss::MeanSquaredError<double>{}, optimizer(), sg::host::Threads{2},
          sg::Options{.clip_norm = 0.05,
                      .recompute = members == 3,
                      .replicas = replicas(first_layers.size() + 1, members * groups)});
      auto one = sg::Pipeline{chain()}.on_one_device(sg::loss::MeanSquaredError<double>{},
                                                     optimizer(), sg::Options{.clip_norm = 0.05});
      REQUIRE(difference<double>(train, one) == 0);
      for (int step = 0; step < 3; ++step) {
        auto const data = batch<double>(step, 2, 13);
        auto const metrics = sg::run(train.step(data));
        CHECK(metrics.gradient_norm == Approx(one.step(data).gradient_norm).epsilon(1e-10));
        REQUIRE(difference<double>(train, one) < 1e-12);
      }
      CHECK(train.stages() == static_cast<int>(first_layers.size()) + 1);
    }
}

namespace {

/// The larger one of each two neighbouring features. It says nothing of itself.
struct Pool {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  static std::size_t larger(Input const& x, std::size_t i) {
    return 2 * i + (x[2 * i + 1] > x[2 * i] ? 1 : 0);
  }
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) const {
    if (x.extent(1) % 2 != 0) throw std::runtime_error("no pairs of features");
    y.resize({x.extent(0), x.extent(1) / 2});
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[larger(x, i)];
  }
  void backward_input(sg::Context&, Input const& x, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    dx.resize_like(x);
    dx.fill(0);
    for (std::size_t i = 0; i < dy.size(); ++i) dx[larger(x, i)] = dy[i];
  }
};

/// A picture of two columns for each row: what comes next indexes three extents.
struct Reshape {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) const {
    y.resize({x.extent(0), x.extent(1) / 2, 2});
    std::copy(x.begin(), x.end(), y.begin());
  }
  void backward_input(sg::Context&, Input const& x, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    dx.resize_like(x);
    std::copy(dy.begin(), dy.end(), dx.begin());
  }
};

/// Every line of a picture minus the next one, the last minus the first.
struct Differences {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) const {
    std::size_t const lines = x.extent(1);
    y.resize({x.extent(0), 2 * lines});
    for (std::size_t r = 0; r < x.extent(0); ++r)
      for (std::size_t i = 0; i < 2 * lines; ++i)
        y[r * 2 * lines + i] = x[r * 2 * lines + i] - x[r * 2 * lines + (i + 2) % (2 * lines)];
  }
  void backward_input(sg::Context&, Input const& x, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    dx.resize_like(x);
    dx.fill(0);
    std::size_t const all = 2 * x.extent(1);
    for (std::size_t r = 0; r < x.extent(0); ++r)
      for (std::size_t i = 0; i < all; ++i) {
        dx[r * all + i] += dy[r * all + i];
        dx[r * all + (i + 2) % all] -= dy[r * all + i];
      }
  }
};

}  // namespace

TEST_CASE("engine/groups: behind a split layer, one that says nothing of itself takes all columns",
          "[engine]") {
  auto const chain = [] {
    return sg::Sequential{Linear<double>{inputs, 12, 1},
                          Pool{},
                          Linear<double>{6, 8, 2},
                          Reshape{},
                          Differences{},
                          Linear<double>{8, outputs, 3, false}};
  };
  for (int const members : {2, 3, 4})  // of which 3 cut a pair of the 8 columns in two
    for (std::vector<int> const& first_layers : {std::vector<int>{}, std::vector{1}, {4}}) {
      CAPTURE(members, first_layers);
      auto train = sg::Pipeline{chain()}.with(
          sg::partition::LayerSplit<>{members, {first_layers}, 0},
          sg::loss::MeanSquaredError<double>{}, optimizer(), sg::host::Threads{2},
          sg::Options{.replicas = replicas(first_layers.size() + 1, members)});
      auto one =
          sg::Pipeline{chain()}.on_one_device(sg::loss::MeanSquaredError<double>{}, optimizer());
      for (int step = 0; step < 3; ++step) {
        auto const data = batch<double>(step, 2, 13);
        CHECK(sg::run(train.step(data)).loss == Approx(one.step(data).loss).epsilon(1e-12));
        REQUIRE(difference<double>(train, one) < 1e-12);
      }
    }
}

TEST_CASE("engine/groups: in virtual time a layer that groups take as two costs as much as one",
          "[engine]") {
  for (int const members : {1, 2}) {
    sg::sim::VirtualClock clock{
        .costs = {{.forward_s = 6, .backward_input_s = 5, .backward_weight_s = 7}},
        .layer_backward_s = {1, 2}};
    auto train =
        sg::Pipeline{sg::Sequential{Linear<double>{inputs, 7, 1, false}, ScaledSquares{}}}.with(
            sg::partition::LayerSplit{.group = members, .threshold = 0},
            sg::loss::MeanSquaredError<double>{}, std::move(clock),
            sg::Options{.record = true, .replicas = {members}});
    Batch<double> data;
    data.inputs.push_back(numbers<double>(6, inputs, 1));
    data.targets.push_back(numbers<double>(6, 7, 2));
    sg::run(train.step(data));
    auto const timeline = train.timeline();
    for (int r = 0; r < timeline.ranks(); ++r)
      CHECK(timeline.row(r).back().end_s == Approx(18.0 / members));
  }
}

TEST_CASE("engine/groups: every pattern of split layers has the gradients of one device",
          "[engine]") {
  for (Case of : patterns()) {
    if (of.pattern % 5 == 0) of.options.clip_norm = 0.05;
    CAPTURE(of.pattern, of.members, of.pairs);
    REQUIRE(apart<double>(sg::host::Threads{of.pattern % 4 == 0 ? 2 : 1}, of) < 1e-12);
  }
}

TEST_CASE("engine/groups: schedules, positions and threads do not change what groups compute",
          "[engine]") {
  int number = 0;
  for (Case const& of : wide()) {
    CAPTURE(number);
    REQUIRE(apart<double>(sg::host::Threads{1}, of) < 1e-12);
    auto one = pipeline<double>(sg::host::Threads{1}, of);
    auto two = pipeline<double>(sg::host::Threads{number % 2 == 0 ? 2 : 4}, of);
    auto clocked = pipeline<double>(
        sg::sim::VirtualClock{.exchange = {0.25, 1e-3}, .jitter = 0.5, .seed = 3}, of);
    for (int step = 0; step < 2; ++step) {
      auto const data = batch<double>(step, of.microbatches, 17);
      double const loss = sg::run(one.step(data)).loss;
      CHECK(loss == sg::run(two.step(data)).loss);
      CHECK(loss == sg::run(clocked.step(data)).loss);
      REQUIRE(bits(one) == bits(two));
      REQUIRE(bits(one) == bits(clocked));
    }
    ++number;
  }
}

namespace {

/// A random schedule with random cuts, ranks, options and widths, of which some have fewer features
/// than a group has members; none if too few layers are left for it.
std::optional<Case> random_case(std::uint64_t seed) {
  constexpr int layers = 7;
  std::uint64_t draws = 0;
  auto const below = [&](std::uint64_t end) {
    return static_cast<int>(sg::random_bits(seed, {draws++}) % end);
  };
  std::vector<sg::schedule::CatalogEntry> entries;
  for (auto const& entry : sg::schedule::catalog)
    if (entry.flushes && entry.trains && entry.slices == 1) entries.push_back(entry);
  auto const& entry = entries[static_cast<std::size_t>(below(entries.size()))];
  int const positions = entry.owners == 2 ? 2 : 1 + below(3);
  int left = positions * entry.chunks - 1;  // cuts
  if (left >= layers) return std::nullopt;
  Case of{.pattern = 1U + static_cast<unsigned>(below(15)), .members = 2 + below(3)};
  of.schedule = made(sg::schedule::Named{.name = std::string(entry.name)});
  for (int l = 1; l < layers; ++l)
    if (below(static_cast<std::uint64_t>(layers - l)) < left) of.cuts.push_back(l), --left;
  for (int p = 0; p < positions; ++p)
    of.counts.push_back(p + 1 < positions && below(4) == 0 ? 1 + below(4)
                                                           : of.members * (1 + below(2)));
  of.microbatches = 2 * positions * (1 + below(2));
  of.pairs = below(2) == 0;
  of.options.recompute = below(3) == 0;
  if (below(3) == 0) of.options.spare_slots = static_cast<unsigned>(below(2));
  if (below(2) == 0) of.options.clip_norm = 0.05;
  if (below(2) == 0)
    for (std::size_t& width : of.widths) width = 1 + static_cast<std::size_t>(below(13));
  return of;
}

}  // namespace

TEST_CASE("engine/groups: random schedules, positions and groups compute what one device does",
          "[engine]") {
  std::uint64_t const cases = full() ? 2000 : 200;
  int ran = 0;
  for (std::uint64_t seed = 0; seed < cases; ++seed) {
    auto const of = random_case(seed);
    if (!of) continue;
    CAPTURE(seed);
    try {
      double const far = apart<double>(sg::host::Threads{1}, *of);
      REQUIRE(far < 1e-10);
      ++ran;
    } catch (sg::Error const& error) {
      REQUIRE_THAT(error.what(), Catch::Contains("cannot form groups"));
    }
  }
  CHECK(ran > static_cast<int>(cases / 2));
}

TEST_CASE("engine/groups: with floats, within 1e-5 of one device", "[engine]") {
  for (int const members : {2, 4}) {
    Case of{.members = members};
    of.pairs = members == 4;
    CHECK(apart<float>(sg::host::Threads{2}, of) < 1e-5);
  }
}

TEST_CASE("engine/groups: a group of 1, and layers of which none is worth it, change no bit",
          "[engine]") {
  Case const grouped{.members = 1, .groups = 4, .microbatches = 3};
  Case never{.members = 2, .groups = 2, .microbatches = 3};
  never.threshold = std::numeric_limits<double>::infinity();
  for (Case const& of : {grouped, never}) {
    auto train = pipeline<double>(sg::host::Threads{2}, of);
    sg::Options options;
    options.seed = 7;
    options.replicas = {4};
    auto plain = sg::Pipeline{model<double>(15)}.with(sg::partition::Cuts{}, of.schedule,
                                                      sg::loss::MeanSquaredError<double>{},
                                                      optimizer(), sg::host::Threads{2}, options);
    CHECK(train.program(3).row_edges.empty());
    for (int step = 0; step < 2; ++step) {
      auto const data = batch<double>(step, 3, 17);
      CHECK(sg::run(train.step(data)).loss == sg::run(plain.step(data)).loss);
      CHECK(bits(train) == bits(plain));
    }
  }
}

TEST_CASE("engine/groups: predictions and evaluation are those of one device, counted once",
          "[engine]") {
  for (Case const& of : {Case{.members = 2, .groups = 1}, Case{.members = 3, .groups = 2},
                         Case{.pattern = 7, .members = 2, .groups = 2, .cuts = {4}}}) {
    auto train = pipeline<double>(sg::host::Threads{1}, of);
    auto one = one_device<double>(of);
    auto const data = batch<double>(3, 3, 12);
    std::vector<Matrix<double>> predicted(3);
    std::vector<Matrix<double>> expected(3);
    auto plain = sg::Pipeline{model<double>(15)}.with(sg::partition::Cuts{},
                                                      sg::loss::MeanSquaredError<double>{});
    for (int again = 0; again < 2; ++again) {
      sg::run(train.predict(data.inputs, predicted));
      sg::run(plain.predict(data.inputs, expected));
      for (std::size_t m = 0; m < 3; ++m) {
        REQUIRE(predicted[m].extents() == expected[m].extents());
        for (std::size_t i = 0; i < predicted[m].size(); ++i)
          CHECK(predicted[m][i] == Approx(expected[m][i]).epsilon(1e-12));
      }
      CHECK(sg::run(train.evaluate(data)).loss == Approx(one.evaluate(data).loss).epsilon(1e-12));
    }
  }
}

TEST_CASE(
    "engine/groups: parameters are those of the whole model, written with one group size "
    "and read with another",
    "[engine]") {
  Case const two{.members = 2};
  Case const four{.pattern = 13, .members = 4, .groups = 2, .pairs = true};
  auto from = pipeline<double>(sg::host::Threads{1}, two);
  auto to = pipeline<double>(sg::host::Threads{1}, four);
  auto one = one_device<double>(two);
  for (int step = 0; step < 2; ++step) sg::run(from.step(batch<double>(step, 2, 17)));
  auto const copy = [](auto& there, auto& here) {
    auto source = there.parameters();
    auto target = here.parameters();
    for (std::size_t p = 0; p < source.size(); ++p) {
      CHECK(source[p].name == target[p].name);
      std::copy(source[p].value.begin(), source[p].value.end(), target[p].value.begin());
      std::copy(source[p].state[0].begin(), source[p].state[0].end(), target[p].state[0].begin());
    }
    here.resume(there.steps());
  };
  copy(from, to);
  copy(from, one);
  auto const shapes = to.parameter_shapes();
  auto const states = to.parameters();
  REQUIRE(shapes.size() == states.size());
  for (std::size_t p = 0; p < states.size(); ++p) {
    CHECK(shapes[p].name == states[p].name);
    CHECK(shapes[p].bytes == states[p].value.size());
  }
  CHECK(difference<double>(to, one) == 0);
  auto const data = batch<double>(2, 2, 17);
  sg::run(to.step(data));
  one.step(data);
  CHECK(difference<double>(to, one) < 1e-12);
}

TEST_CASE("engine/groups: what is recorded are the actions of the table", "[engine]") {
  Case of{.members = 2, .groups = 2, .microbatches = 4, .cuts = {3}};
  of.options.record = true;
  for (bool const recompute : {false, true}) {
    of.options.recompute = recompute;
    auto train = pipeline<double>(sg::host::Threads{1}, of);
    CHECK(train.stages() == 2);
    sg::run(train.step(batch<double>(0, 4, 17)));
    auto const table = of.schedule.table({.ranks = 2, .microbatches = 4});
    auto const timeline = train.timeline();
    REQUIRE(timeline.ranks() == 8);
    for (int r = 0; r < 8; ++r) {
      std::vector<sg::schedule::Action> ran;
      for (auto const& span : timeline.row(r)) {
        CHECK(span.start_s <= span.end_s);
        if (!span.repeated) ran.push_back(span.action);
      }
      auto const row = table.row(r / 4);
      CHECK(ran == std::vector(row.begin(), row.end()));
    }
    CHECK(train.peak_in_flight() == std::vector{2, 2, 2, 2, 1, 1, 1, 1});
    CHECK(train.program(4).peak_in_flight == train.peak_in_flight());
  }
}

TEST_CASE(
    "engine/groups: in virtual time a member takes its part of a stage's time, and what it "
    "takes from others costs",
    "[engine]") {
  constexpr std::size_t rows = 5;
  for (int const members : {1, 2, 4}) {
    auto const k = static_cast<std::size_t>(members);
    sg::sim::VirtualClock clock{
        .costs = {{.forward_s = 6, .backward_input_s = 5, .backward_weight_s = 7}},
        .exchange = {0.5, 0.001},
        .layer_backward_s = {1, 2, 3}};
    auto train = sg::Pipeline{sg::Sequential{Linear<double>{inputs, 8, 1}, Linear<double>{8, 12, 2},
                                             Linear<double>{12, 16, 3}}}
                     .with(sg::partition::LayerSplit{.group = members, .threshold = 0},
                           sg::loss::MeanSquaredError<double>{}, std::move(clock),
                           sg::Options{.record = true, .replicas = {members}});
    Batch<double> data;
    data.inputs.push_back(numbers<double>(rows, inputs, 1));
    data.targets.push_back(numbers<double>(rows, 16, 2));
    sg::run(train.step(data));
    // Two shards and the columns for the loss forward, two shards backward; with 1, rows alone.
    auto const line = [](std::size_t elements) {
      return 0.5 + 0.001 * static_cast<double>(elements * sizeof(double));
    };
    double const others = members - 1;
    double const exchanges =
        members == 1
            ? 0
            : others * (2 * line(rows * 8 / k) + 2 * line(rows * 12 / k) + line(rows * 16 / k));
    auto const timeline = train.timeline();
    for (int r = 0; r < timeline.ranks(); ++r) {
      auto const row = timeline.row(r);
      CHECK(row.back().end_s == Approx(18.0 / members + exchanges));
      double exchanged = 0;
      for (auto const& span : row) exchanged += span.exchange_s;
      CHECK(exchanged == Approx(exchanges).margin(1e-9));
    }
  }
}

namespace {

/// The sizes of a layer, without its work.
struct Sizes {
  using Input = Matrix<float>;
  using Output = Matrix<float>;
  std::size_t in, out;
  bool splits = true;
  [[nodiscard]] std::size_t inputs() const { return splits ? in : 0; }
  [[nodiscard]] std::size_t outputs() const { return splits ? out : 0; }
  [[nodiscard]] Sizes part(int member, int members, sg::SplitBy) const {
    auto const own = sg::features_of(member, members, out);
    return {in, own.size()};
  }
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) const {
    y.resize({x.extent(0), out});
    y.fill(0);
  }
  void backward_input(sg::Context&, Input const& x, Output const&, Input& dx,
                      sg::NothingSaved&) const {
    dx.resize_like(x);
    dx.fill(0);
  }
};

}  // namespace

TEST_CASE("engine/groups: the paper's network sends as much as its formulas say", "[engine]") {
  constexpr std::size_t rows = 16;  // of each rank
  constexpr int members = 4;
  auto train =
      sg::Pipeline{sg::Sequential{Sizes{3, 4096, false}, Sizes{4096, 1024}, Squash<float>{},
                                  Sizes{1024, 1024}, Squash<float>{}, Sizes{1024, 10}}}
          .with(sg::partition::LayerSplit{.group = members}, sg::loss::MeanSquaredError<float>{},
                sg::Options{.replicas = {members}});
  Batch<float> data;
  for (int m = 0; m < members; ++m) {  // as many passes as members
    data.inputs.emplace_back().resize({rows, 3});
    data.targets.emplace_back().resize({rows, 10});
    data.inputs.back().fill(0);
    data.targets.back().fill(0);
  }
  for (int step = 1; step < 3; ++step) {
    sg::run(train.step(data));
    auto const traffic = train.traffic();
    for (int member = 0; member < members; ++member) {
      auto const forward = traffic.of(member, sg::TrafficKind::shared_activations);
      auto const backward = traffic.of(member, sg::TrafficKind::shared_gradients);
      auto const steps = static_cast<std::uint64_t>(step);
      CHECK(forward.bytes == steps * 294'912 * sizeof(float));
      CHECK(backward.bytes == steps * 245'760 * sizeof(float));
      CHECK(forward.messages == steps * 3 * members * (members - 1));
      CHECK(backward.messages == steps * 2 * members * (members - 1));
    }
  }
  CHECK(train.traffic().of(sg::TrafficKind::activations).messages == 0);
}

namespace {

/// Rows of a split layer's input or, summed over the members, of its gradient, as they are seen.
struct SeenRows {
  // [microbatch, the first row's number in it, member]: "rank:row of its local batch", in order
  std::map<std::array<int, 3>, std::string> inputs, gradients;
};

/// Names the rows of a value whose first two columns are the rank and the row.
std::string names_of(Matrix<double> const& rows, double divisor = 1) {
  std::string names;
  for (std::size_t r = 0; r < rows.extent(0); ++r) {
    double const* const row = rows.data() + r * rows.extent(1);
    names += sg::text(r == 0 ? "" : " ", row[0] / divisor, ":", row[1] / divisor);
  }
  return names;
}

/// Passes on what it is given, and is not split.
struct Identity {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  SeenRows* seen;
  double divisor;
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) const { y = x; }
  void backward_input(sg::Context& context, Input const&, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    seen->gradients[{context.microbatch(), static_cast<int>(context.first_row()), 0}] =
        names_of(dy, divisor);
    dx = dy;
  }
};

/// Gives its columns of what it takes. Member m claims that the gradient is 10^m times the input.
struct Probe {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  static constexpr std::size_t columns = 4;
  SeenRows* seen;
  int member = 0;
  sg::IndexRange own{0, columns};
  [[nodiscard]] std::size_t inputs() const { return columns; }
  [[nodiscard]] std::size_t outputs() const { return columns; }
  [[nodiscard]] Probe part(int number, int members, sg::SplitBy) const {
    return {seen, number, sg::features_of(number, members, columns)};
  }
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    seen->inputs[{context.microbatch(), static_cast<int>(context.first_row()), member}] =
        names_of(x);
    y.resize({x.extent(0), own.size()});
    for (std::size_t i = 0; i < y.size(); ++i)
      y[i] = x[i / own.size() * columns + own.first + i % own.size()];
  }
  void backward_input(sg::Context&, Input const& x, Output const&, Input& dx,
                      sg::NothingSaved&) const {
    dx.resize_like(x);
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] = x[i] * std::pow(10.0, member);
  }
};

/// Every member's labels must be those of its rows.
struct Labels : sg::loss::MeanSquaredError<double> {
  double value_and_gradient(sg::Context& context, Matrix<double> const& y, Target const& target,
                            double scale, Matrix<double>& dy) const {
    if (!std::equal(y.begin(), y.end(), target.begin(), target.end()))
      throw std::runtime_error("labels of other rows");
    return MeanSquaredError::value_and_gradient(context, y, target, scale, dy);
  }
};

/// Ranks with a local batch each, in as many passes as a group has members: what they see.
SeenRows rows_of(int ranks, int members, int local_batch) {
  SeenRows seen;
  double divisor = 0;  // of a sum over the members
  for (int m = 0; m < members; ++m) divisor += std::pow(10.0, m);
  auto train = sg::Pipeline{sg::Sequential{Identity{&seen, divisor}, Probe{&seen}}}.with(
      sg::partition::LayerSplit{.group = members, .threshold = 0}, Labels{}, sg::host::Threads{1},
      sg::Options{.replicas = {ranks}});
  int const of_pass = local_batch / members;
  sg::Batch<Matrix<double>, Matrix<double>> data;
  for (int k = 0; k < members; ++k) {
    auto& rows = data.inputs.emplace_back();
    rows.resize({static_cast<std::size_t>(ranks * of_pass), Probe::columns});
    rows.fill(0);
    for (int rank = 0; rank < ranks; ++rank)
      for (int j = 0; j < of_pass; ++j) {
        double* const row =
            rows.data() + static_cast<std::size_t>(rank * of_pass + j) * Probe::columns;
        row[0] = rank;
        row[1] = k * of_pass + j;
      }
    data.targets.push_back(rows);
  }
  sg::run(train.step(data));
  return seen;
}

}  // namespace

TEST_CASE("engine/groups: members take the rows of the paper's worked examples in each pass",
          "[engine]") {
  using Rows = decltype(SeenRows::inputs);  // [pass, first row, member]
  SeenRows const four = rows_of(4, 2, 4);
  CHECK(four.inputs == Rows{{{0, 0, 0}, "0:0 0:1 1:0 1:1"},
                            {{0, 0, 1}, "0:0 0:1 1:0 1:1"},
                            {{0, 4, 0}, "2:0 2:1 3:0 3:1"},
                            {{0, 4, 1}, "2:0 2:1 3:0 3:1"},
                            {{1, 0, 0}, "0:2 0:3 1:2 1:3"},
                            {{1, 0, 1}, "0:2 0:3 1:2 1:3"},
                            {{1, 4, 0}, "2:2 2:3 3:2 3:3"},
                            {{1, 4, 1}, "2:2 2:3 3:2 3:3"}});
  CHECK(four.gradients == Rows{{{0, 0, 0}, "0:0 0:1"},  // rank r's begin at row 2 r
                               {{0, 2, 0}, "1:0 1:1"},
                               {{0, 4, 0}, "2:0 2:1"},
                               {{0, 6, 0}, "3:0 3:1"},
                               {{1, 0, 0}, "0:2 0:3"},
                               {{1, 2, 0}, "1:2 1:3"},
                               {{1, 4, 0}, "2:2 2:3"},
                               {{1, 6, 0}, "3:2 3:3"}});
  SeenRows const two = rows_of(2, 2, 2);
  CHECK(two.inputs == Rows{{{0, 0, 0}, "0:0 1:0"},
                           {{0, 0, 1}, "0:0 1:0"},
                           {{1, 0, 0}, "0:1 1:1"},
                           {{1, 0, 1}, "0:1 1:1"}});
  CHECK(two.gradients ==
        Rows{{{0, 0, 0}, "0:0"}, {{0, 1, 0}, "1:0"}, {{1, 0, 0}, "0:1"}, {{1, 1, 0}, "1:1"}});
}

TEST_CASE("engine/groups: in its passes a group takes each row of each member once", "[engine]") {
  for (auto const& [members, local_batch] :
       {std::pair{1, 3}, {2, 2}, {2, 6}, {3, 3}, {3, 6}, {4, 4}, {4, 8}}) {
    constexpr int groups = 2;
    CAPTURE(members, local_batch);
    int const of_pass = local_batch / members;
    SeenRows const seen = rows_of(groups * members, members, local_batch);
    std::map<std::pair<int, int>, std::multiset<std::string>> taken;  // [group, member]
    for (auto const& [at, names] : seen.inputs) {
      auto const [pass, first_row, member] = at;
      int const group = first_row / local_batch;
      std::string expected;  // slot b is row k s + b mod s of member b / s
      for (int b = 0; b < local_batch; ++b) {
        std::string const name =
            sg::text(group * members + b / of_pass, ":", pass * of_pass + b % of_pass);
        expected += (b == 0 ? "" : " ") + name;
        taken[{group, member}].insert(name);
      }
      CHECK(names == expected);
    }
    CHECK(taken.size() == static_cast<std::size_t>(groups * members));
    for (auto const& [of, names] : taken) {
      std::multiset<std::string> once;
      for (int m = 0; m < members; ++m)
        for (int row = 0; row < local_batch; ++row)
          once.insert(sg::text(of.first * members + m, ":", row));
      CHECK(names == once);
    }
    CHECK(seen.gradients.size() == static_cast<std::size_t>(groups * members * members));
    for (auto const& [at, names] : seen.gradients) {
      std::string expected;
      for (int j = 0; j < of_pass; ++j)
        expected += sg::text(j == 0 ? "" : " ", at[1] / of_pass, ":", at[0] * of_pass + j);
      CHECK(names == expected);
    }
  }
}

TEST_CASE("engine/groups: averaging sends as much as its formula says, without the way back",
          "[engine]") {
  for (AveragedCase const& of : averaged_cases()) {
    CAPTURE(of.members);
    auto train = averaged_pipeline(sg::host::Threads{1}, of.members);
    auto const [plan, layers, numbers_of_layers] = sg::describe(train);
    for (int step = 1; step < 4; ++step) {
      sg::run(train.step(averaged_batch(step)));
      for (int rank = 0; rank < 4; ++rank) {
        auto const sent = train.traffic().of(rank, sg::TrafficKind::gradient_sums);
        auto const steps = static_cast<std::uint64_t>(step);
        CHECK(sent.messages == steps * of.messages / 2);
        CHECK(sent.bytes == steps * of.elements / 2 * sizeof(float));
        CHECK(sg::partition::averaged_elements(plan, layers, rank % of.members, 4) ==
              static_cast<double>(of.elements));
      }
    }
  }
}

TEST_CASE("engine/groups: members send what the plan says, whatever is split", "[engine]") {
  constexpr std::size_t rows = 3;  // of each rank
  for (unsigned pattern = 0; pattern < 16; ++pattern)
    for (int const members : {2, 3, 4})
      for (bool const pairs : {false, true}) {
        Case const of{.pattern = pattern, .members = members, .pairs = pairs};
        auto train = pipeline<float>(sg::host::Threads{1}, of);
        auto const [plan, layers, numbers_of_layers] = sg::describe(train);
        Batch<float> data;
        for (std::uint64_t m = 0; m < 2; ++m) {
          std::size_t const all = rows * static_cast<std::size_t>(members);
          data.inputs.push_back(numbers<float>(all, inputs, m));
          data.targets.push_back(numbers<float>(all, outputs, m));
        }
        sg::run(train.step(data));
        for (int member = 0; member < members; ++member) {
          std::uint64_t forward = 0;
          std::uint64_t backward = 0;
          for (std::size_t l = 0; l <= layers.size(); ++l) {
            auto const sent = sg::partition::elements_sent(plan, l, member, 2 * rows);
            forward += sent.forward * sizeof(float);
            backward += sent.backward * sizeof(float);
          }
          CAPTURE(pattern, members, pairs, member);
          auto const traffic = train.traffic();
          REQUIRE(traffic.of(member, sg::TrafficKind::shared_activations).bytes == forward);
          REQUIRE(traffic.of(member, sg::TrafficKind::shared_gradients).bytes == backward);
        }
      }
}

TEST_CASE("engine/groups: what does not fit is refused in one sentence", "[engine]") {
  auto const says = [](Case const& of) -> std::string {
    try {
      auto train = pipeline<double>(sg::host::Threads{1}, of);
      sg::run(train.step(batch<double>(0, 2, 5)));
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::bad_configuration);
      return error.what();
    }
    return "";
  };
  CHECK(says({.members = 2, .counts = {3}}) ==
        "position 0 of the schedule has 3 ranks, which cannot form groups of 2 for the layers of "
        "stage 0; give it a multiple of 2, or LayerSplit another group");
  CHECK(says({.members = 8, .counts = {2}}).find("groups of 8") != std::string::npos);
  CHECK(says({.members = 2, .cuts = {1}, .counts = {3, 2}}).empty());
  CHECK(says({.members = 0, .counts = {2}}) ==
        "a group of 0 ranks cannot share layers; use at least 1");
  CHECK(says({.members = 8, .groups = 1}) ==
        "microbatch 0 has 5 rows, of which replica 0 of the 8 of position 0 would get none; give "
        "each microbatch at least 8 rows, or the position fewer replicas");
  CHECK_THROWS_WITH(
      sg::Pipeline{model<double>(15)}.with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
                                           sg::loss::MeanSquaredError<double>{}),
      "a position with 1 rank cannot form groups of 2; give Options::replicas a multiple of 2");
}

namespace {

/// Says it gives fewer columns, or parameters, than it does.
struct Wrong : Linear<double> {
  bool parameters_too;
  Wrong(std::size_t in_of, std::size_t out_of, bool all)
      : Linear(in_of, out_of, 1), parameters_too(all) {}
  [[nodiscard]] Wrong part(int member, int members, sg::SplitBy by) const {
    Wrong own = *this;
    static_cast<Linear&>(own) = Linear::part(parameters_too ? 0 : member, members, by);
    if (!parameters_too && member == 1) {
      --own.out;
    }
    return own;
  }
};

}  // namespace

TEST_CASE("engine/groups: parts that do not make a whole are refused", "[engine]") {
  auto const make = [](bool parameters) {
    return sg::Pipeline{sg::Sequential{Wrong{inputs, 9, parameters}, Linear<double>{9, outputs, 2}}}
        .with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
              sg::loss::MeanSquaredError<double>{}, sg::Options{.replicas = {2}});
  };
  CHECK_THROWS_WITH(make(true),
                    "the parameter 'weight' of layer 0 has 48 elements in the parts of 2 members "
                    "and 54 in the whole; let part() give each member a Parameter::piece of it, "
                    "and each element to one of them");
  auto train = make(false);
  CHECK_THROWS_WITH(sg::run(train.step(batch<double>(0, 1, 4))),
                    "a member of a group has 4 columns of a value, where 5 were expected; let "
                    "part() of the layers take and give what features_of() says");
}

namespace {

/// Gives every member the first half of the parameters.
struct FirstHalf : Linear<double> {
  using Linear::Linear;
  [[nodiscard]] FirstHalf part(int, int members, sg::SplitBy by) const {
    FirstHalf own = *this;
    static_cast<Linear&>(own) = Linear::part(0, members, by);
    return own;
  }
};

/// Names the bias of one member otherwise.
struct Renamed : Linear<double> {
  using Linear::Linear;
  [[nodiscard]] Renamed part(int member, int members, sg::SplitBy by) const {
    Renamed own = *this;
    static_cast<Linear&>(own) = Linear::part(member, members, by);
    if (member == 1)
      own.bias = sg::Parameter<double>("offset", numbers(out, 1)).piece({.first = 4, .length = 4});
    return own;
  }
};

}  // namespace

TEST_CASE("engine/groups: pieces are refused before the first step, whatever the schedule takes",
          "[engine]") {
  Made threes = made(sg::schedule::OneFOneB{});
  threes.make = [](sg::Shape shape) {
    if (shape.microbatches % 3 != 0)
      throw sg::Error(sg::Errc::bad_configuration, "give a multiple of 3 microbatches");
    return sg::schedule::table_of(sg::schedule::OneFOneB{}, shape);
  };
  auto const make = [&](auto layer) {
    static_cast<void>(
        sg::Pipeline{sg::Sequential{std::move(layer), Linear<double>{8, outputs, 2}}}.with(
            sg::partition::LayerSplit{.group = 2, .threshold = 0}, threes,
            sg::loss::MeanSquaredError<double>{}, sg::Options{.replicas = {2}}));
  };
  CHECK_THROWS_WITH(make(FirstHalf{inputs, 8, 1}),
                    "the parameter 'weight' of layer 0 has 48 elements in the parts of 2 members "
                    "and 48 in the whole; let part() give each member a Parameter::piece of it, "
                    "and each element to one of them");
  CHECK_THROWS_WITH(make(Renamed{inputs, 8, 1}),
                    "the parts of layer 0 have different parameters; let parameters() list the "
                    "same ones for every part");
}

TEST_CASE("engine/groups: a layer that groups take as two counts as one in messages", "[engine]") {
  CHECK_THROWS_WITH(
      (sg::Pipeline{sg::Sequential{ScaledSquares{}, ScaledSquares{}, Linear<double>{6, outputs, 2}}}
           .with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
                 sg::loss::MeanSquaredError<double>{}, sg::Options{.replicas = {2}})),
      "layer 2 takes 6 features, but 7 arrive; let its inputs() be the outputs() of the layer "
      "before it");
}

TEST_CASE("engine/groups: parameters shown twice are the same memory until the next step",
          "[engine]") {
  auto train = pipeline<double>(sg::host::Threads{1}, {.members = 2});
  auto const first = train.parameters();
  auto const name = std::string("1.weight");
  auto const of = [&](auto const& states) {
    return *std::find_if(states.begin(), states.end(),
                         [&](auto const& s) { return s.name == name; });
  };
  of(first).template values<double>()[0] = 5;
  CHECK(of(train.parameters()).template values<double>()[0] == 5);
  of(first).template values<double>()[0] = 7;
  CHECK(of(train.parameters()).template values<double>().data() ==
        of(first).template values<double>().data());
  CHECK(of(train.parameters()).template values<double>()[0] == 7);
}

TEST_CASE("engine/groups: the message of a stall names stages of the table, and parts of them",
          "[engine]") {
  auto train = pipeline<double>(sg::host::Threads{1},
                                {.members = 2, .microbatches = 2, .cuts = {3}, .counts = {2, 2}});
  sg::Program const& program = train.program(2);
  auto const& grouped = *train.machine().model.grouped;
  // The parts of a stage are what a rank runs of it for one microbatch, forward from the first on.
  for (auto const& rank : program.ranks) {
    std::vector<std::string> expected;
    int parts = 0;
    for (auto const& in : rank.code)
      parts += in.op == sg::Op::forward && in.microbatch == 0 ? 1 : 0;
    int part = 0;
    for (auto const& in : rank.code) {
      if (in.op != sg::Op::forward) continue;
      part = part % parts + 1;
      std::string const action =
          sg::text(grouped.table_stage[in.stage], "F", static_cast<int>(in.microbatch));
      CHECK(sg::detail::describe(program, in) ==
            (parts == 1 ? action : sg::text(action, " (part ", part, " of ", parts, ")")));
    }
  }
  // Rank 0 has run its first layer forward, and rank 1 nothing.
  std::vector<std::size_t> at(program.ranks.size());
  std::vector<std::uint32_t> given(program.signals.size());
  auto const& code = program.ranks[0].code;
  while (code[at[0]].op != sg::Op::forward) ++at[0];
  for (std::size_t i = 0; i <= at[0]; ++i)
    for (std::size_t g = 0; g < code[i].signal_count; ++g) ++given[code[i].signal[g]];
  ++at[0];
  CHECK_THAT(sg::detail::describe_stall(program, at, given),
             Catch::StartsWith("rank 0 waits before gathering rows for 0F0 (part 2 of 2) for rank "
                               "1, which has done nothing yet; "));
}

}  // namespace groups_test
