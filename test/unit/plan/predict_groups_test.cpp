// SPDX-License-Identifier: Apache-2.0
// Predictions for groups that share layers, beside the engine under the virtual clock.
#include <stagger/plan/predict.hpp>

#include "catch.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/single.hpp>

#include "engine/split_model.hpp"

namespace predict_groups_test {

using namespace split_model;
namespace plan = sg::plan;

namespace {

constexpr std::size_t widths[] = {inputs, 7, 12, 12, 9, 11, 11, outputs};
constexpr double times[] = {3, 8, 1, 7, 6, 1, 9};  // of each layer's forward, of a sample
constexpr std::size_t layers = 7;
constexpr double alpha_s = 6;  // of each message
constexpr double rate = 40;    // bytes/s

std::vector<sg::partition::LayerFeatures> features(unsigned pattern) {
  std::vector<sg::partition::LayerFeatures> all{{}};
  unsigned bit = 0;
  for (std::size_t l = 1; l < layers; ++l) {
    if (l == 2 || l == 5) {
      all.push_back({.element_wise = true});
      continue;
    }
    bool const can = (pattern >> bit++ & 1U) != 0;
    all.push_back(
        {.inputs = can ? widths[l] : 0, .outputs = can ? widths[l + 1] : 0, .by_inputs = true});
  }
  return all;
}

/// What gradients take that are added up.
enum class Sums {
  none,     ///< nothing: they have no size
  line,     ///< as much as by the number of ranks of the first position, the only one that adds up
  startup,  ///< as long as their messages take to start, by the ranks that hold the same parameters
};

sg::cluster::Profile profile(Sums sums) {
  sg::cluster::Profile made{.name = "split", .batch = 1};
  for (std::size_t l = 0; l < layers; ++l)
    made.layers.push_back(
        {.forward_s = times[l],
         .backward_s = 2 * times[l],
         .activation_bytes = widths[l + 1] * sizeof(float),
         .parameter_bytes = l == 2 || l == 5 || sums == Sums::none
                                ? 0
                                : (widths[l] + 1) * widths[l + 1] * sizeof(float)});
  return made;
}

sg::cluster::Cluster cluster(int devices, double startup_s = alpha_s, Sums sums = Sums::line,
                             double bytes_per_s = rate) {
  sg::cluster::Cluster made{
      .name = "", .devices = {}, .intra = {{startup_s, bytes_per_s, {}}}, .inter = {}};
  if (sums == Sums::startup) made.intra[0].all_reduce_bytes_per_s = {1e12};
  made.devices.assign(static_cast<std::size_t>(devices), {"a", 1'000'000'000, 1, 0});
  return made;
}

struct Outcome {
  plan::Plan predicted;
  double run_s = 0;
};

/// @param rows       of each rank of the first position
/// @param startup_s  of each message
Outcome outcome(Case of, std::size_t rows, Sums sums, double startup_s = alpha_s,
                double bytes_per_s = rate) {
  std::size_t const positions = of.cuts.size() + 1;
  if (of.counts.empty()) of.counts.assign(positions, of.members * of.groups);
  auto const most = static_cast<std::size_t>(*std::max_element(of.counts.begin(), of.counts.end()));
  std::size_t const microbatch = rows * most;
  plan::Plan draft{.microbatches = of.microbatches, .recompute = of.options.recompute};
  int device = 0;
  for (std::size_t s = 0; s < positions; ++s) {
    plan::PlanStage stage{
        .first = s == 0 ? 0 : of.cuts[s - 1],
        .last = s + 1 == positions ? static_cast<int>(layers) - 1 : of.cuts[s] - 1,
        .warm_up = static_cast<int>(positions - s)};
    for (int d = 0; d < of.counts[s]; ++d) stage.devices.push_back(device++);
    draft.stages.push_back(stage);
  }
  plan::Workload const w(profile(sums), cluster(device, startup_s, sums, bytes_per_s),
                         {.batch = of.microbatches * static_cast<int>(microbatch)});
  auto const split = sg::partition::plan_split(
      features(of.pattern), {.group = of.members, .threshold = 0, .pairs = of.pairs});
  Outcome result{.predicted = plan::predict(w, draft, split, of.update)};

  sg::sim::VirtualClock clock{.exchange = {startup_s, 1 / bytes_per_s},
                              .layer_backward_s = {times, times + layers}};
  for (std::size_t s = 0; s < positions; ++s) {
    auto const& stage = result.predicted.stages[s];
    double whole = 0;
    for (int l = stage.first; l <= stage.last; ++l)
      whole += times[l] * static_cast<double>(microbatch);
    clock.costs.stages.push_back({.forward_s = whole,
                                  .backward_input_s = whole,
                                  .backward_weight_s = whole,
                                  .transfer_s = stage.transfer_s});
    int const holders = of.counts[s] / (s == 0 ? 1 : of.members);
    if (sums == Sums::startup) clock.costs.stages[s].reduce_s = 2 * (holders - 1) * startup_s;
  }
  double const others = of.counts[0] - 1;
  if (sums == Sums::line)
    clock.sum = {2 * others * startup_s, 2 * others / of.counts[0] / bytes_per_s};
  of.options.record = true;
  of.options.replicas = sg::Replicas::even(of.counts.data(), of.counts.size());
  auto train = sg::Pipeline{model<float>(of.pattern)}.with(
      sg::partition::LayerSplit<>{of.members, {of.cuts}, 0, of.pairs, of.update}, of.schedule,
      sg::loss::MeanSquaredError<float>{}, optimizer(), clock, of.options,
      sg::collective::AllReduce<sg::collective::grouping::Single>{});
  Batch<float> data;
  for (int m = 0; m < of.microbatches; ++m) {
    data.inputs.push_back(numbers<float>(microbatch, inputs, 1));
    data.targets.push_back(numbers<float>(microbatch, outputs, 2));
  }
  sg::run(train.step(data));
  for (auto const& timeline : {train.timeline(), train.reductions()})
    for (auto const& span : timeline.spans) result.run_s = std::max(result.run_s, span.end_s);
  return result;
}

}  // namespace

TEST_CASE("plan/predict: groups take as long as in the engine, whatever they share", "[plan]") {
  for (unsigned pattern = 0; pattern < 16; ++pattern)
    for (int const members : {1, 2, 4})
      for (bool const pairs : {false, true}) {
        Case of{.pattern = pattern, .members = members, .groups = 4 / members, .pairs = pairs};
        of.microbatches = pattern % 2 == 0 ? members : 3;
        of.options.recompute = pattern % 3 == 0;
        CAPTURE(pattern, members, pairs);
        auto const [predicted, run_s] = outcome(of, 8, Sums::none);
        CHECK(predicted.simulated_s == Approx(run_s).epsilon(0.03));
      }
}

TEST_CASE("plan/predict: groups in pipelines of several positions, and their gradients", "[plan]") {
  for (auto const& [cuts, counts] : std::vector<std::pair<std::vector<int>, std::vector<int>>>{
           {{}, {2}}, {{3}, {2, 2}}, {{4}, {4, 2}}, {{1}, {2, 4}}, {{1, 3, 5}, {2, 2, 2, 4}}})
    for (int const microbatches : {1, 4, 8})
      for (int const variant : {0, 1, 2, 3}) {
        Case of{.members = 1 + variant % 2, .microbatches = microbatches, .cuts = cuts};
        of.counts = counts;
        of.options.recompute = variant >= 2;
        CAPTURE(cuts, counts, microbatches, of.members, of.options.recompute);
        bool const pairs_alone = std::count(counts.begin(), counts.end(), 4) == 0;
        auto const [predicted, run_s] = outcome(of, 8, pairs_alone ? Sums::line : Sums::none);
        CHECK(predicted.simulated_s == Approx(run_s).epsilon(0.03));
      }
}

TEST_CASE("plan/predict: gradients of parameters that more than two ranks hold", "[plan]") {
  // In front of the first split layer all ranks hold them, behind it one of each group. Where both
  // are several, the layers in front have a position of their own, as the clock's cost of sums.
  constexpr double startup_s = 100;  // so that a wrong number of ranks shows
  for (auto const& [members, ranks] : {std::pair{3, 3}, {4, 4}, {2, 4}, {3, 6}})
    for (int const microbatches : {1, 4})
      for (int const variant : {0, 1, 2, 3}) {
        bool const one_number = ranks == members;
        Case of{.members = members, .groups = ranks / members, .microbatches = microbatches};
        if (!one_number) of.cuts = {1};
        of.pairs = variant % 2 == 1;
        of.options.recompute = variant >= 2;
        CAPTURE(members, ranks, microbatches, of.pairs, of.options.recompute);
        auto const [predicted, run_s] =
            outcome(of, 8, one_number ? Sums::line : Sums::startup, startup_s);
        CHECK(predicted.simulated_s == Approx(run_s).epsilon(0.03));
        auto const without = outcome(of, 8, Sums::none, startup_s).predicted;
        CHECK(predicted.simulated_s - without.simulated_s > startup_s);
      }
}

TEST_CASE("plan/predict: parts that differ in size, where bytes decide", "[plan]") {
  // 7, 11 and 9 features over 2, 3 and 4 members. Messages start at once, over a slow link.
  constexpr double startup_s = 1e-3;
  constexpr double bytes_per_s = 0.5;
  for (int const members : {2, 3, 4})
    for (int const microbatches : {1, 4})
      for (bool const pairs : {false, true}) {
        Case of{.members = members, .groups = 1, .microbatches = microbatches};
        of.pairs = pairs;
        CAPTURE(members, microbatches, pairs);
        for (Sums const sums : {Sums::none, Sums::line}) {
          auto const [predicted, run_s] = outcome(of, 1, sums, startup_s, bytes_per_s);
          CHECK(predicted.simulated_s == Approx(run_s).epsilon(0.03));
        }
      }
}

TEST_CASE("plan/predict: updates in each pass take no time, in the engine neither", "[plan]") {
  for (auto const& [cuts, counts] : std::vector<std::pair<std::vector<int>, std::vector<int>>>{
           {{}, {2}}, {{3}, {2, 2}}, {{1}, {4, 2}}, {{1, 3, 5}, {2, 2, 2, 2}}})
    for (int const microbatches : {1, 4, 8})
      for (int const variant : {0, 1, 2, 3}) {
        Case of{.members = 2, .pairs = variant % 2 == 1, .microbatches = microbatches};
        of.cuts = cuts;
        of.counts = counts;
        of.options.recompute = variant >= 2;
        bool const pairs_alone = std::count(counts.begin(), counts.end(), 4) == 0;
        Sums const sums = pairs_alone ? Sums::line : Sums::none;
        CAPTURE(cuts, counts, microbatches, of.pairs, of.options.recompute);
        auto const once = outcome(of, 8, sums);
        of.update = sg::partition::Update::each_pass;
        auto const [predicted, run_s] = outcome(of, 8, sums);
        CHECK(predicted.simulated_s == once.predicted.simulated_s);
        CHECK(predicted.simulated_s == Approx(run_s).epsilon(0.03));
      }
}

TEST_CASE("plan/predict: parameters of shared layers take a part of the memory", "[plan]") {
  Case of{.members = 2, .groups = 1};
  auto const two = outcome(of, 8, Sums::line).predicted.stages[0];
  of.threshold = 0;
  of.pattern = 0;
  auto const whole = outcome(of, 8, Sums::line).predicted.stages[0];
  double saved = 0;  // on the member with the larger part, where they differ
  for (std::size_t const l : {1U, 3U, 4U, 6U})
    saved += static_cast<double>((widths[l] + 1) * (widths[l + 1] / 2) * sizeof(float));
  CHECK(whole.static_bytes - two.static_bytes == Approx(4 * saved));
}

TEST_CASE("plan/predict: layers that are updated in each pass take copies and versions", "[plan]") {
  using namespace sg::schedule;
  for (int const members : {1, 2, 4})
    for (int const microbatches : {1, 2, 3, 6})
      for (bool const gpipe : {false, true})
        for (auto const& cuts : std::vector<std::vector<int>>{{}, {3}, {1, 4, 5}}) {
          int const positions = static_cast<int>(cuts.size()) + 1;
          CAPTURE(members, microbatches, gpipe, cuts);
          // Here a device has the bytes of the optimizer's one state besides values and gradients.
          plan::Workload const w(profile(Sums::line), cluster(members * positions),
                                 {.batch = 8 * microbatches, .memory_factor = 3});
          plan::Plan draft{.microbatches = microbatches};
          for (int s = 0; s < positions; ++s) {
            plan::PlanStage stage{
                .first = s == 0 ? 0 : cuts[static_cast<std::size_t>(s) - 1],
                .last = s + 1 == positions ? 6 : cuts[static_cast<std::size_t>(s)] - 1,
                .warm_up = gpipe ? microbatches : positions - s};
            for (int d = 0; d < members; ++d) stage.devices.push_back(s * members + d);
            draft.stages.push_back(stage);
          }
          auto const split =
              sg::partition::plan_split(features(15), {.group = members, .threshold = 0});
          auto const once = plan::predict(w, draft, split);
          auto const passes = plan::predict(w, draft, split, sg::partition::Update::each_pass);

          Case of{.members = members,
                  .microbatches = microbatches,
                  .schedule = gpipe ? made(GPipe{}) : made(OneFOneB{}),
                  .cuts = cuts};
          of.update = sg::partition::Update::each_pass;
          auto train = pipeline<float>(sg::sim::VirtualClock{}, of);
          auto const& model = train.machine().model;
          std::vector<double> extra(static_cast<std::size_t>(positions));  // of all members
          for (auto const& cell : train.program(static_cast<std::size_t>(microbatches)).cells)
            for (std::size_t const l : model.layers_of(cell.stage))
              if (cell.alone)
                extra[static_cast<std::size_t>(cell.position)] +=
                    static_cast<double>(model.parameters[l].sent_bytes()) *
                    (1 + model.optimizer.states + static_cast<int>(cell.versions) - 1);
          CHECK(extra.back() > 0);
          for (std::size_t s = 0; s < extra.size(); ++s) {
            CAPTURE(s);
            CHECK(passes.stages[s].static_bytes - once.stages[s].static_bytes ==
                  Approx(extra[s] / members));
          }
        }
}

TEST_CASE("plan/predict: groups that cannot be predicted are refused", "[plan]") {
  plan::Workload const w(profile(Sums::line), cluster(3), {.batch = 12});
  plan::Plan draft{.microbatches = 1};
  draft.stages.push_back({.first = 0, .last = 6, .devices = {0, 1, 2}});
  auto const all = features(15);
  auto const split = sg::partition::plan_split(all, {.group = 2, .threshold = 0});
  CHECK_THROWS_WITH(plan::predict(w, draft, split),
                    "stage 0 has 3 devices, which cannot form groups of 2 for its layers; give it "
                    "a multiple of 2");
  auto other = all;
  other.pop_back();
  CHECK_THROWS_WITH(
      plan::predict(w, draft, sg::partition::plan_split(other, {.group = 2, .threshold = 0})),
      "a plan for 6 layers does not belong to a chain of 7; give the layers it was made for");
  draft.gradients = plan::Gradients::overlapped;
  CHECK_THROWS_WITH(plan::predict(w, draft, split),
                    "gradients of layers that groups share are added up between their exchanges, "
                    "not in groups of layers that a plan chooses; let Plan::gradients be together");
}

}  // namespace predict_groups_test
