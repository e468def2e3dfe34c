// SPDX-License-Identifier: Apache-2.0
#pragma once
// Five linear layers that groups of ranks can share, as pipelines and on one device.
#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/core/random.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/looped_bfs.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/train/pipeline.hpp>

#include "engine/small_model.hpp"
#include "full.hpp"

namespace split_model {

namespace sg = stagger;
using small_model::Made;
using small_model::made;

template <class T> using Matrix = sg::Tensor<T>;

/// y = x weight^T + bias.
template <class T> struct Linear {
  using Input = Matrix<T>;
  using Output = Matrix<T>;
  static constexpr bool by_inputs = true;
  std::size_t in, out;
  bool splits;
  sg::Parameter<T> weight, bias;  // [out][in], [out]

  Linear(std::size_t inputs_of, std::size_t outputs_of, std::uint64_t seed, bool can_split = true)
      : in(inputs_of),
        out(outputs_of),
        splits(can_split),
        weight("weight", inputs_of * outputs_of, &fill, seed, 1.0 / static_cast<double>(inputs_of)),
        bias("bias", numbers(outputs_of, seed + 100)) {}
  static void fill(std::span<T> values, std::uint64_t seed, double scale) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<T>(
          scale * (static_cast<double>(sg::random_bits(seed, {i}) % 4001) / 1000.0 - 2.0));
  }
  static std::vector<T> numbers(std::size_t count, std::uint64_t seed) {
    std::vector<T> values(count);
    fill(values, seed, 0.5);
    return values;
  }
  auto parameters() { return std::tie(weight, bias); }

  [[nodiscard]] std::size_t inputs() const { return splits ? in : 0; }
  [[nodiscard]] std::size_t outputs() const { return splits ? out : 0; }
  [[nodiscard]] Linear part(int member, int members, sg::SplitBy by) const {
    Linear own = *this;
    auto const m = static_cast<std::size_t>(member);
    auto const k = static_cast<std::size_t>(members);
    if (by == sg::SplitBy::outputs) {
      auto const mine = sg::features_of(m, k, out);
      own.out = mine.size();
      own.weight = weight.piece({.first = mine.first * in, .length = mine.size() * in});
      own.bias = bias.piece({.first = mine.first, .length = mine.size()});
    } else {
      auto const mine = sg::features_of(m, k, in);
      own.in = mine.size();
      own.weight =
          weight.piece({.first = mine.first, .length = mine.size(), .stride = in, .runs = out});
      own.bias = bias.piece({.length = member == 0 ? out : 0});
    }
    return own;
  }

  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    auto const w = context[weight];
    auto const b = context[bias];
    std::size_t const rows = x.extent(0);
    if (x.extent(1) != in) throw std::runtime_error("wrong inputs");
    y.resize({rows, out});
    auto const sums = context.scratch<T>(out);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        sums[o] = b.empty() ? T(0) : b[o];
        for (std::size_t i = 0; i < in; ++i) sums[o] += w[o * in + i] * x[r * in + i];
      }
      std::copy(sums.begin(), sums.end(), y.data() + r * out);
    }
  }
  void backward_input(sg::Context& context, Input const& x, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    auto const w = context[weight];
    dx.resize_like(x);
    dx.fill(0);
    for (std::size_t r = 0; r < x.extent(0); ++r)
      for (std::size_t o = 0; o < out; ++o)
        for (std::size_t i = 0; i < in; ++i) dx[r * in + i] += dy[r * out + o] * w[o * in + i];
  }
  void backward_weight(sg::Context& context, Input const& x, Output const& dy,
                       sg::NothingSaved&) const {
    auto const dw = context.gradient(weight);
    auto const db = context.gradient(bias);
    for (std::size_t r = 0; r < x.extent(0); ++r)
      for (std::size_t o = 0; o < out; ++o) {
        if (!db.empty()) db[o] += dy[r * out + o];
        for (std::size_t i = 0; i < in; ++i) dw[o * in + i] += dy[r * out + o] * x[r * in + i];
      }
  }
};

/// x / (1 + |x|), some features of some rows dropped: by row and feature of the whole.
template <class T> struct Squash {
  using Input = Matrix<T>;
  using Output = Matrix<T>;
  static constexpr bool element_wise = true;
  struct Saved {
    std::uint64_t seed = 0;
    std::size_t row = 0, column = 0;
  };
  static T kept(Saved const& saved, std::size_t r, std::size_t c) {
    if (saved.seed == 0) return 1;
    auto const bits = sg::random_bits(saved.seed, {saved.row + r, saved.column + c});
    return bits % 4 == 0 ? T(0) : T(1.25);
  }
  void forward(sg::Context& context, Input const& x, Output& y, Saved& saved) const {
    saved = {context.training() ? context.random_seed() : 0, context.first_row(),
             context.first_column()};
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i)
      y[i] = x[i] / (1 + std::abs(x[i])) * kept(saved, i / x.extent(1), i % x.extent(1));
  }
  void backward_input(sg::Context&, Input const& x, Output const& dy, Input& dx,
                      Saved& saved) const {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      T const d = 1 + std::abs(x[i]);
      dx[i] = dy[i] / (d * d) * kept(saved, i / x.extent(1), i % x.extent(1));
    }
  }
};

template <class T> using Batch = sg::Batch<Matrix<T>, Matrix<T>>;

constexpr std::size_t inputs = 6;
constexpr std::size_t outputs = 10;

/// The features between the five linear layers.
using Widths = std::array<std::size_t, 4>;
inline constexpr Widths usual_widths{7, 12, 9, 11};

/// Five linear layers, of which four can be split as the bits of a pattern say.
template <class T> auto model(unsigned pattern, Widths const& w = usual_widths) {
  auto const can = [&](unsigned bit) { return (pattern >> bit & 1U) != 0; };
  return sg::Sequential{
      Linear<T>{inputs, w[0], 1, false},  Linear<T>{w[0], w[1], 2, can(0)}, Squash<T>{},
      Linear<T>{w[1], w[2], 3, can(1)},   Linear<T>{w[2], w[3], 4, can(2)}, Squash<T>{},
      Linear<T>{w[3], outputs, 5, can(3)}};
}
template <class T> Matrix<T> numbers(std::size_t rows, std::size_t columns, std::uint64_t seed) {
  Matrix<T> matrix({rows, columns});
  Linear<T>::fill({matrix.data(), matrix.size()}, seed, 1);
  return matrix;
}
template <class T> Batch<T> batch(int step, int microbatches, std::size_t rows) {
  Batch<T> made;
  for (int m = 0; m < microbatches; ++m) {
    auto const seed = static_cast<std::uint64_t>(step * 1000 + m * 2);
    std::size_t const own = rows + static_cast<std::size_t>(m) % 3;
    made.inputs.push_back(numbers<T>(own, inputs, seed));
    made.targets.push_back(numbers<T>(own, outputs, seed + 1));
  }
  return made;
}

inline sg::optimizer::Sgd optimizer() { return {.rate = 0.05, .momentum = 0.9}; }

template <class Trainer> std::vector<std::byte> bits(Trainer& train) {
  return small_model::bits(train);
}

/// The largest difference of values and states, relative to the largest number of each.
/// @param blocks  1: of values alone, since the optimizer's state may be a server's
template <class T, class A, class B> double difference(A& a, B& b, int blocks = 2) {
  double most = 0;
  auto const x = a.parameters();
  auto const y = b.parameters();
  REQUIRE(x.size() == y.size());
  for (std::size_t p = 0; p < x.size(); ++p) {
    REQUIRE(x[p].name == y[p].name);
    for (int block = 0; block < blocks; ++block) {
      auto const of = [&](sg::ParameterState const& state) {
        auto const& bytes = block == 0 ? state.value : state.state[0];
        return std::span<T>(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
      };
      REQUIRE(of(x[p]).size() == of(y[p]).size());
      double largest = 0;
      double apart = 0;
      for (std::size_t i = 0; i < of(x[p]).size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(of(y[p])[i])));
        apart = std::max(
            apart, std::abs(static_cast<double>(of(x[p])[i]) - static_cast<double>(of(y[p])[i])));
      }
      if (largest > 0) most = std::max(most, apart / largest);
    }
  }
  return most;
}

struct Case {
  unsigned pattern = 15;
  int members = 2;
  int groups = 1;
  bool pairs = false;
  int microbatches = 2;
  Made schedule = made(sg::schedule::OneFOneB{});
  std::vector<int> cuts{};
  sg::Options options{};
  double threshold = 0;
  std::vector<int> counts{};  // ranks of each position; none: members * groups
  sg::partition::Update update = sg::partition::Update::accumulate;
  Widths widths = usual_widths;
};

inline sg::Replicas replicas(std::size_t positions, int each) {
  std::vector<int> const counts(positions, each);
  return sg::Replicas::even(counts.data(), counts.size());
}

/// @param more  policies
template <class T, class Device, class... More>
auto pipeline(Device device, Case const& of, More const&... more) {
  sg::Options options = of.options;
  options.seed = 7;
  std::size_t const positions =
      (of.cuts.size() + 1) / static_cast<std::size_t>(of.schedule.chunks());
  options.replicas = replicas(positions, of.members * of.groups);
  if (!of.counts.empty()) options.replicas = sg::Replicas::even(of.counts.data(), of.counts.size());
  return sg::Pipeline{model<T>(of.pattern, of.widths)}.with(
      sg::partition::LayerSplit<>{of.members, {of.cuts}, of.threshold, of.pairs, of.update},
      of.schedule, sg::loss::MeanSquaredError<T>{}, optimizer(), std::move(device), options,
      more...);
}

template <class T> auto one_device(Case const& of) {
  sg::Options options;
  options.seed = 7;
  options.clip_norm = of.options.clip_norm;
  return sg::Pipeline{model<T>(of.pattern, of.widths)}.on_one_device(
      sg::loss::MeanSquaredError<T>{}, optimizer(), options);
}

/// What is split in each of the 16 ways, by groups of each size.
inline std::vector<Case> patterns() {
  std::vector<Case> cases;
  for (unsigned pattern = 0; pattern < 16; ++pattern)
    for (int const members : {2, 3, 4, 8})
      for (bool const pairs : {false, true}) {
        Case of{.pattern = pattern, .members = members, .groups = members == 8 ? 1 : 2};
        of.pairs = pairs;
        of.microbatches = pattern % 3 == 0 ? members : 1;
        of.options.recompute = pattern % 2 == 1;
        cases.push_back(of);
      }
  return cases;
}

/// Schedules, positions and threads, for a group of 2 or 3.
inline std::vector<Case> wide() {
  using namespace sg::schedule;
  std::vector<Case> cases;
  auto const add = [&](Made const& schedule, std::vector<int> cuts, std::vector<int> counts) {
    auto const number = static_cast<unsigned>(cases.size());
    Case of{.pattern = number % 2 == 0 ? 15U : 13U - number % 8, .schedule = schedule};
    of.pairs = number % 3 == 0;
    of.microbatches = std::array{4, 2, 8}[number % 3];
    of.cuts = std::move(cuts);
    of.counts = std::move(counts);
    of.options.recompute = number % 4 == 1;
    if (number % 2 == 0) of.options.spare_slots = number % 4 / 2;
    if (number % 3 != 0) of.options.clip_norm = 0.05;
    cases.push_back(of);
  };
  for (Made const& schedule : {made(GPipe{}), made(OneFOneB{}), made(ZeroBubbleH1{})}) {
    add(schedule, {}, {2});
    add(schedule, {}, {4});
    add(schedule, {3}, {2, 2});
    add(schedule, {4}, {4, 4});
    add(schedule, {4}, {4, 2});
    add(schedule, {3}, {2, 4});
    add(schedule, {1}, {3, 2});
    add(schedule, {1}, {1, 4});
    add(schedule, {1, 3, 5}, {3, 2, 2, 4});
  }
  add(made(Interleaved{}), {1, 3, 5}, {2, 2});
  add(made(Interleaved{}), {2, 3, 5}, {4, 2});
  add(made(Chimera{}), {3}, {2, 2});
  add(made(Chimera{}), {1}, {2, 2});
  // All values between two stages of one position wait at once, and no other rank takes them.
  cases.push_back({.pattern = 10, .microbatches = 8, .schedule = made(LoopedBfs{}), .cuts = {4}});
  return cases;
}

/// The values of everything that may differ: members, groups, the pattern of what is split, pairs,
/// microbatches for each member, the schedule, recomputation, positions, threads or processes.
inline constexpr std::array<std::size_t, 9> option_values{5, 2, 16, 2, 3, 3, 2, 2, 3};
using Choice = std::array<std::size_t, option_values.size()>;

inline Case case_of(Choice const& of) {
  using namespace sg::schedule;
  constexpr std::array sizes{1, 2, 3, 4, 8};
  int const members = sizes[of[0]];
  Case made_of{.pattern = static_cast<unsigned>(of[2]),
               .members = members,
               .groups = 1 + static_cast<int>(of[1]),
               .pairs = of[3] == 1,
               .microbatches = std::array{1, members, 2 * members}[of[4]]};
  made_of.schedule = std::array{made(GPipe{}), made(OneFOneB{}), made(ZeroBubbleH1{})}[of[5]];
  made_of.options.recompute = of[6] == 1;
  if (of[7] == 1) made_of.cuts = {4};
  return made_of;
}

/// So many choices at random that each two values of different kinds meet; in full, each three.
/// @param possible  whether a choice can run; each two values must meet in one that can
template <class Possible = bool (*)(Choice const&)>
std::vector<Choice> choices(Possible possible = [](Choice const&) { return true; }) {
  std::set<std::array<std::size_t, 6>> met;
  auto const meet = [&](Choice const& of) {
    std::size_t const before = met.size();
    for (std::size_t a = 0; a < option_values.size(); ++a)
      for (std::size_t b = 0; b < a; ++b)
        for (std::size_t c = 0; c < (full() ? b : 1); ++c)
          met.insert({a, b, c, of[a], of[b], full() ? of[c] : 0});
    return met.size() > before;
  };
  std::size_t end = 0;
  for (std::size_t a = 0; a < option_values.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      for (std::size_t c = 0; c < (full() ? b : 1); ++c)
        end += option_values[a] * option_values[b] * (full() ? option_values[c] : 1);
  std::vector<Choice> chosen;
  for (std::uint64_t i = 0; met.size() < end; ++i) {
    Choice of{};
    for (std::size_t kind = 0; kind < option_values.size(); ++kind)
      of[kind] = sg::random_bits(5, {i, kind}) % option_values[kind];
    if (possible(of) && meet(of)) chosen.push_back(of);
  }
  return chosen;
}

/// So many weights, and no work.
struct IdleWeights {
  using Input = Matrix<float>;
  using Output = Matrix<float>;
  std::size_t in, out;
  bool splits = true;
  sg::Parameter<> weight;
  IdleWeights(std::size_t inputs_of, std::size_t outputs_of)
      : in(inputs_of), out(outputs_of), weight("weight", inputs_of * outputs_of, &zeros, 1) {}
  static IdleWeights convolutions(std::size_t count, std::size_t outputs_of) {
    IdleWeights all(1, outputs_of);
    all.splits = false;
    all.weight = {"weight", count, &zeros, 1};
    return all;
  }
  static void zeros(std::span<float>, std::uint64_t, double) {}
  auto parameters() { return std::tie(weight); }
  [[nodiscard]] std::size_t inputs() const { return splits ? in : 0; }
  [[nodiscard]] std::size_t outputs() const { return splits ? out : 0; }
  [[nodiscard]] IdleWeights part(int member, int members, sg::SplitBy) const {
    auto const mine =
        sg::features_of(static_cast<std::size_t>(member), static_cast<std::size_t>(members), out);
    IdleWeights own = *this;
    own.out = mine.size();
    own.weight = weight.piece({.first = mine.first * in, .length = mine.size() * in});
    return own;
  }
  void forward(sg::Context&, Input const& x, Output& y, sg::NothingSaved&) const {
    y.resize({x.extent(0), out});
    y.fill(0);
  }
  void backward(sg::Context&, Input const& x, Output const&, Input& dx, sg::NothingSaved&) const {
    dx.resize_like(x);
    dx.fill(0);
  }
};

/// What each of four ranks sends in a step to average the gradients of a small network, by a
/// reduce-scatter and an all-gather: 2 (n - 1) / n of what n ranks have.
struct AveragedCase {
  int members;
  std::uint64_t elements, messages;
};
/// 1024 weights of convolutions, 2048 each of two layers that are split, 512 of one that is not.
inline std::vector<AveragedCase> averaged_cases() {
  return {{1, 6 * (1024 + 4096 + 512) / 4, 6 * 4},
          {2, 6 * 1024 / 4 + 2 * (4096 / 2 + 512) / 2, 6 + 2 * 3},
          {4, 6 * 1024 / 4, 6}};
}
template <class Device> auto averaged_pipeline(Device device, int members) {
  return sg::Pipeline{sg::Sequential{IdleWeights::convolutions(1024, 64), IdleWeights{64, 32},
                                     IdleWeights{32, 64}, IdleWeights{64, 8}}}
      .with(sg::partition::LayerSplit{.group = members, .threshold = 30}, std::move(device),
            sg::loss::MeanSquaredError<float>{},
            sg::collective::AllReduce<sg::collective::grouping::Layerwise>{},
            sg::Options{.replicas = {4}});
}
inline Batch<float> averaged_batch(int step) {
  Batch<float> data;
  data.inputs.push_back(numbers<float>(8, 1, static_cast<std::uint64_t>(step)));
  data.targets.push_back(numbers<float>(8, 8, static_cast<std::uint64_t>(step) + 100));
  return data;
}

}  // namespace split_model
