// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/pipeline_footprint.hpp>

#include "catch.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <stagger/partition/split_plan.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>

#include "engine/row_oracle.hpp"
#include "engine/split_model.hpp"
#include "same_memory.hpp"

namespace pipeline_footprint_test {

using namespace split_model;

namespace {

/// Predicts the memory of a pipeline, then has it take two steps.
void check_memory(Case const& of, std::size_t rows) {
  auto train = pipeline<double>(sg::host::Threads{1}, of);
  std::map<std::size_t, sg::Footprint> known;
  auto const footprint = [&](std::size_t n) -> sg::Footprint const& {
    auto const found = known.find(n);
    if (found != known.end()) return found->second;
    return known[n] = sg::footprint(train, sg::loss::MeanSquaredError<double>{},
                                    numbers<double>(n, inputs, 1), numbers<double>(n, outputs, 2));
  };
  auto const data = batch<double>(0, of.microbatches, rows);
  std::vector<std::size_t> counts;
  for (auto const& input : data.inputs) counts.push_back(input.extent(0));
  auto const before = bits(train);
  auto const predicted = sg::predicted_memory(train, counts, footprint);
  CHECK(bits(train) == before);
  for (int step = 0; step < 2; ++step) sg::run(train.step(data));
  check_same_memory(predicted, train.memory());
}

}  // namespace

TEST_CASE("train/footprint: memory of groups is predicted to the byte, whatever is split",
          "[train]") {
  for (Case const& of : patterns()) {
    CAPTURE(of.pattern, of.members, of.pairs);
    check_memory(of, 17);
  }
}

TEST_CASE("train/footprint: memory of groups that update in each pass is predicted", "[train]") {
  using namespace sg::schedule;
  for (Made const& schedule : {made(GPipe{}), made(OneFOneB{})})
    for (int const members : {1, 2, 4})
      for (auto const& cuts : std::vector<std::vector<int>>{{}, {3}}) {
        Case of{.members = members, .microbatches = 4, .schedule = schedule, .cuts = cuts};
        of.update = sg::partition::Update::each_pass;
        CAPTURE(members, cuts);
        check_memory(of, 12);
      }
}

TEST_CASE("train/footprint: memory of groups is predicted for schedules and positions", "[train]") {
  using namespace sg::schedule;
  int number = 0;
  for (Made const& schedule : {made(GPipe{}), made(OneFOneB{}), made(ZeroBubbleH1{})})
    for (int const microbatches : {1, 2, 4, 8})
      for (auto const& [cuts, counts] : std::vector<std::pair<std::vector<int>, std::vector<int>>>{
               {{}, {4}}, {{3}, {2, 2}}, {{4}, {4, 2}}, {{1}, {3, 2}}, {{1, 3, 5}, {3, 2, 2, 4}}}) {
        Case of{.schedule = schedule, .cuts = cuts, .counts = counts};
        of.microbatches = microbatches;
        of.pairs = number % 2 == 0;
        of.options.recompute = number++ % 3 == 0;
        if (number % 5 == 0) of.options.spare_slots = 1;
        CAPTURE(number, microbatches, cuts, counts);
        check_memory(of, 12);
      }
  check_memory(
      {.microbatches = 4, .schedule = made(Interleaved{}), .cuts = {1, 3, 5}, .counts = {2, 2}}, 6);
}

TEST_CASE("train/footprint: a pipeline whose layers nobody shares is measured as well", "[train]") {
  Case alone{.microbatches = 3, .cuts = {2, 5}, .counts = {2, 1, 3}};
  alone.threshold = std::numeric_limits<double>::infinity();
  check_memory(alone, 9);
}

namespace {

/// The weights of a dense layer, without biases.
struct Weights {
  using Input = Matrix<float>;
  using Output = Matrix<float>;
  std::size_t in, out;
  bool splits;
  sg::Parameter<> weight;
  Weights(std::size_t inputs_of, std::size_t outputs_of, std::size_t elements, bool can_split)
      : in(inputs_of),
        out(outputs_of),
        splits(can_split),
        weight("weight", elements, [](std::span<float>, std::uint64_t, double) {}, 0) {}
  auto parameters() { return std::tie(weight); }
  [[nodiscard]] std::size_t inputs() const { return splits ? in : 0; }
  [[nodiscard]] std::size_t outputs() const { return splits ? out : 0; }
  [[nodiscard]] Weights part(int member, int members, sg::SplitBy) const {
    Weights own = *this;
    auto const mine = sg::features_of(member, members, out);
    own.out = mine.size();
    own.weight = weight.piece({.first = mine.first * in, .length = mine.size() * in});
    return own;
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
  void backward_weight(sg::Context& context, Input const&, Output const&, sg::NothingSaved&) const {
    context.gradient(weight)[0] += 1;
  }
};

}  // namespace

TEST_CASE(
    "train/footprint: parameters of the paper's network, of each member: values, gradients "
    "and states of its part",
    "[train]") {
  constexpr std::uint64_t each[] = {6'987'456, 4'366'016, 3'055'296, 2'399'936};
  int const sizes[] = {1, 2, 4, 8};
  for (std::size_t i = 0; i < 4; ++i) {
    int const members = sizes[i];
    auto train =
        sg::Pipeline{
            sg::Sequential{Weights{3, 4096, 1'734'336, false}, Weights{4096, 1024, 4'194'304, true},
                           Weights{1024, 1024, 1'048'576, true}, Weights{1024, 10, 10'240, true}}}
            .with(sg::partition::LayerSplit{.group = members}, sg::loss::MeanSquaredError<float>{},
                  sg::optimizer::AdamW{}, sg::Options{.replicas = {members}});
    auto const of = sg::footprint(train, sg::loss::MeanSquaredError<float>{}, Matrix<float>({1, 3}),
                                  Matrix<float>({1, 10}));
    auto const& model = train.machine().model;
    // What the ranks of one member have: what lies in front of the split layers, and its own.
    for (int m = 0; m < members; ++m) {
      std::uint64_t values = 0;
      for (std::size_t s = 0; s < model.stages(); ++s) {
        if (s != 0 && members > 1 &&
            (s - 1) % static_cast<std::size_t>(members) != static_cast<std::size_t>(m))
          continue;
        for (std::size_t const l : model.layers_of(s)) values += of.layers[l].parameters;
      }
      CHECK(values == each[i] * sizeof(float));
    }
  }
}

}  // namespace pipeline_footprint_test
