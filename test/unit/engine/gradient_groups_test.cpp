// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/detail/gradient_groups.hpp>

#include "catch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/model/lamb.hpp>
#include <stagger/model/muon.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>

#include "row_oracle.hpp"

namespace gradient_groups_test {

using row_model::Weights;
using namespace small_model;
namespace collective = sg::collective;
namespace grouping = sg::collective::grouping;

namespace {

template <class G, class Device, class Optimizer = sg::optimizer::AdamW>
auto grouped(collective::AllReduce<G> policy, Device device, std::vector<int> cuts, Made schedule,
             sg::Options options, Optimizer update = optimizer()) {
  options.seed = run_seed;
  return sg::Pipeline{row_model::model()}.with(sg::partition::Cuts{std::move(cuts)},
                                               std::move(schedule), Loss{}, update,
                                               std::move(device), policy, options);
}

/// Calls `body(policy)` for groupings of every kind.
template <class Body> void each_grouping(Body body) {
  body(collective::AllReduce<>{});
  body(collective::AllReduce<>{.measured_steps = 1, .renew_every = 2});
  body(collective::AllReduce<>{.shard_optimizer = true, .measured_steps = 0});
  body(collective::AllReduce<grouping::Greedy>{.measured_steps = 2});
  body(collective::AllReduce<grouping::Layerwise>{});
  body(collective::AllReduce<grouping::Single>{});
  body(collective::AllReduce<grouping::Bucket>{.grouping = {100}});
  body(collective::AllReduce<grouping::Named>{.grouping = grouping::named("bucket:1")});
}

struct Case {
  Made schedule;
  int positions;
  sg::Replicas replicas;
  Weights weights;
  std::size_t rows = 4;
};

std::vector<Case> cases() {
  using namespace sg::schedule;
  return {{made(GPipe{}), 1, {2}, {{1, 1}}},
          {made(OneFOneB{}), 2, {3, 1}, {{1, 1, 1}, {1}}},
          {split(made(OneFOneB{}), 2), 2, {2, 3}, {{1, 1}, {1, 1, 1}}},
          {made(OneFOneB{}), 2, {{15, 1}, {1, 1}}, {{15, 1}, {1, 1}}, 16},
          {made(Interleaved{}), 2, {2, 2}, {{1, 1}, {1, 1}}},
          {made(Chimera{}), 2, {2, 1}, {{1, 1}, {1}}},
          {made(DualPipe{}), 2, {1, 1}, {{1}, {1}}}};
}

}  // namespace

TEST_CASE(
    "engine/GradientGroups: parameters have the bits of loops over the rows for every grouping",
    "[engine]") {
  constexpr int microbatches = 4;
  unsigned number = 0;
  for (Case const& one : cases()) {
    int const stages = one.positions * one.schedule.each;
    auto const cuts = even_cuts(stages);
    std::vector<Batch> data;
    for (int s = 0; s < (sanitized ? 4 : 9); ++s)
      data.push_back(row_model::batch(s, microbatches, one.rows, true));
    auto const table = one.schedule.table(
        {.ranks = one.positions, .microbatches = microbatches, .chunks = one.schedule.each});
    for (bool const clips : {true, false}) {
      auto const course = row_model::expected_course(
          data, clips, orders_of(table, first_layers(cuts)), one.weights);
      each_grouping([&](auto policy) {
        int const threads = std::array{1, 2, 9}[number % 3];
        sg::Options options;
        options.recompute = number % 2 == 0;
        options.record = number % 5 == 0;
        if (clips) options.clip_norm = clip;
        options.replicas = one.replicas;
        CAPTURE(number, stages, threads, clips, options.recompute);
        auto on_threads = grouped(policy, sg::host::Threads{threads}, cuts, one.schedule, options);
        REQUIRE(first_difference(on_threads, data, course) == -1);
        auto clocked = grouped(policy, sg::sim::VirtualClock{.jitter = 0.5, .seed = number}, cuts,
                               one.schedule, options);
        REQUIRE(first_difference(clocked, data, course) == -1);
        ++number;
      });
    }
  }
}

TEST_CASE("engine/GradientGroups: each holder takes its part of every group once all gave theirs",
          "[engine]") {
  for (Case const& one : cases()) {
    int const stages = one.positions * one.schedule.each;
    sg::List<sg::GradientGroup> groups;
    for (int s = 0; s < stages; ++s)
      for (int const lowest : {4, 2, 0})
        groups.push_back({s, lowest, lowest == 4 ? sg::GradientGroup::all : lowest + 1});
    auto const table = one.schedule.table(
        {.ranks = one.positions, .microbatches = 4, .chunks = one.schedule.each});
    auto const program = sg::lay_out(
        table,
        {.replicas = &one.replicas, .groups = &groups, .shared = &sg::detail::shared_passes});
    CHECK(sg::play(program).empty());
    CHECK(program.computing == static_cast<int>(one.replicas.parts().size()));
    std::vector<int> holders(static_cast<std::size_t>(stages));
    for (auto const& cell : program.cells) ++holders[static_cast<std::size_t>(cell.stage)];
    std::vector<int> parts(program.cells.size());  // of the last backward
    std::vector<int> sums(program.cells.size());
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      bool const computes = static_cast<int>(r) < program.computing;
      CHECK((program.ranks[r].reducer_for < 0) == computes);
      std::size_t wait = 0;
      for (auto const& in : program.ranks[r].code) {
        bool const part = in.op == sg::Op::backward_part || in.op == sg::Op::backward_weight_part;
        CHECK((in.op == sg::Op::reduce) == !computes);
        if (part) CHECK(groups[in.group].stage == in.stage);
        if (part) CHECK(in.group % 3 == parts[in.cell]++);
        if (in.op == sg::Op::reduce) {
          CHECK(in.y == holders[in.stage]);
          CHECK(in.waits == in.y);
          CHECK(in.group % 3 == sums[in.cell]++);
          CHECK(program.cells[in.cell].rank == program.ranks[r].reducer_for);
          for (std::size_t w = wait; w < wait + in.waits; ++w) {
            auto const& awaited = program.ranks[r].waits[w];
            auto const cell = static_cast<std::size_t>(program.signals[awaited.signal].gradients);
            CHECK(program.cells[cell].stage == in.stage);
            CHECK(program.cells[cell].rank == program.signals[awaited.signal].sender);
            CHECK(awaited.count == in.group % 3 + 1U);
          }
        }
        wait += in.waits;
      }
    }
    for (std::size_t c = 0; c < program.cells.size(); ++c) {
      int const expected = holders[static_cast<std::size_t>(program.cells[c].stage)] > 1 ? 3 : 0;
      CHECK(parts[c] == expected);
      CHECK(sums[c] == expected);
    }
  }
}

namespace {

constexpr double forward_s = 8;
constexpr double backward_s = 16;
std::vector<double> const layer_backward_s{3, 1, 1, 2, 4, 1, 4};  // sum: backward_s

/// One stage on two ranks: a step without communication, and layers as a grouping sees them.
struct Prediction {
  std::vector<double> times;
  std::vector<std::uint64_t> bytes;
  double before_s = 0;
  explicit Prediction(int microbatches) : bytes(layer_backward_s.size()) {
    for (double const s : layer_backward_s) times.push_back(s / 2);  // half of the rows
    auto one = sg::Pipeline{row_model::model()}.with(sg::host::Threads{1});
    for (auto const& state : one.parameters())
      bytes[static_cast<std::size_t>(state.name[0] - '0')] += state.value.size();
    before_s = (microbatches * forward_s + (microbatches - 1) * backward_s) / 2;
  }
  [[nodiscard]] collective::Backward backward() const { return {before_s, times, bytes}; }
};

double end_of(sg::schedule::Timeline const& timeline) {
  double last = 0;
  for (auto const& span : timeline.spans) last = std::max(last, span.end_s);
  return last;
}

/// Seconds of a step once the grouping is decided.
template <class G>
double simulated(collective::AllReduce<G> policy, collective::CostLine line, int microbatches) {
  sg::Options options;
  options.replicas = {2};
  options.record = true;
  auto train = grouped(policy,
                       sg::sim::VirtualClock{.costs = sg::schedule::Costs::uniform(
                                                 forward_s, backward_s / 2, backward_s / 2),
                                             .sum = line,
                                             .layer_backward_s = layer_backward_s},
                       {}, made(sg::schedule::GPipe{}), options);
  for (int s = 0; s < 8; ++s) sg::run(train.step(row_model::batch(s, microbatches, 4, false)));
  CHECK(train.timeline().ranks() == 2);
  CHECK(train.reductions().ranks() == 2);
  return std::max(end_of(train.timeline()), end_of(train.reductions()));
}

}  // namespace

TEST_CASE(
    "engine/GradientGroups: in virtual time a step lasts as long as the formulas of the grouping",
    "[engine]") {
  for (int const microbatches : {1, 3})
    for (auto const line : {collective::CostLine{0.5, 0.01}, collective::CostLine{3, 0.02},
                            collective::CostLine{0, 0.05}, collective::CostLine{20, 0.001}}) {
      Prediction const prediction(microbatches);
      auto const backward = prediction.backward();
      CAPTURE(microbatches, line.startup_s, line.per_byte_s);
      auto const check = [&]<class G>(collective::AllReduce<G> policy) {
        auto const groups = policy.grouping.groups(backward, line);
        double const expected_s = collective::evaluate(backward, groups, line).iteration_s;
        double const actual_s = simulated(policy, line, microbatches);
        CHECK(actual_s == Approx(expected_s).epsilon(1e-9));
        return actual_s;
      };
      double const single = check(collective::AllReduce<grouping::Single>{});
      double const layerwise = check(collective::AllReduce<grouping::Layerwise>{});
      double const bucket = check(collective::AllReduce<grouping::Bucket>{.grouping = {64}});
      double const optimal = check(collective::AllReduce<>{});
      check(collective::AllReduce<>{.measured_steps = 2});
      check(collective::AllReduce<grouping::Greedy>{.measured_steps = 1});
      CHECK(optimal <= std::min({single, layerwise, bucket}) * (1 + 1e-9));
      std::uint64_t bytes = 0;
      for (auto const of_layer : prediction.bytes) bytes += of_layer;
      CHECK(single ==
            Approx(prediction.before_s + backward_s / 2 + line.seconds(bytes)).epsilon(1e-9));
    }
}

TEST_CASE(
    "engine/GradientGroups: in virtual time a part of a backward takes that of its own layers",
    "[engine]") {
  // The last stage has layers 3 to 6; each of its two replicas has half of the rows.
  auto const sums = [](Made const& schedule, double reduce_s, collective::CostLine line) {
    auto costs = sg::schedule::Costs::uniform(2, 3, 3);
    costs.each.reduce_s = reduce_s;
    sg::Options options;
    options.replicas = {1, 2};
    options.record = true;
    auto train =
        grouped(collective::AllReduce<grouping::Layerwise>{},
                sg::sim::VirtualClock{
                    .costs = costs, .sum = line, .layer_backward_s = {700, 800, 900, 1, 2, 3, 4}},
                {3}, schedule, options);
    sg::run(train.step(row_model::batch(0, 1, 4, false)));
    auto const reductions = train.reductions();
    std::vector<std::vector<sg::schedule::Span>> rows;
    for (int r = 0; r < reductions.ranks(); ++r)
      if (auto const row = reductions.row(r); !row.empty())
        rows.emplace_back(row.begin(), row.end());
    REQUIRE(rows.size() == 2);
    return rows;
  };
  auto const check = [](auto const& rows, std::vector<double> const& starts) {
    for (auto const& row : rows) {
      REQUIRE(row.size() == starts.size());
      for (std::size_t i = 0; i < row.size(); ++i) CHECK(row[i].start_s == Approx(starts[i]));
    }
  };
  auto const gpipe = made(sg::schedule::GPipe{});
  collective::CostLine const nearly_nothing{0, 1e-12};
  // F from 2 to 3, B from 3 to 6: a sum begins behind 4, 7, 9 and 10 tenths of it.
  check(sums(gpipe, 0, nearly_nothing), {4.2, 5.1, 5.7, 6});
  // I from 3 to 4.5, W from 4.5 to 6 in the same parts.
  check(sums(split(gpipe, 0), 0, nearly_nothing), {5.1, 5.55, 5.85, 6});
  // Without a line, the sums of a stage take its reduce_s together.
  for (auto const& row : sums(gpipe, 8, {})) {
    double all_s = 0;
    for (auto const& span : row) all_s += span.end_s - span.start_s;
    CHECK(all_s == Approx(8));
  }
}

TEST_CASE(
    "engine/GradientGroups: optimizers of whole parameters have the bits of loops over the rows",
    "[engine]") {
  unsigned number = 0;
  for (Case const& one : cases()) {  // also with more replicas than a layer has parameters
    int const stages = one.positions * one.schedule.each;
    auto const cuts = even_cuts(stages);
    std::vector<Batch> data;
    for (int s = 0; s < 3; ++s) data.push_back(row_model::batch(s, 4, one.rows, true));
    auto const table = one.schedule.table(
        {.ranks = one.positions, .microbatches = 4, .chunks = one.schedule.each});
    auto const check = [&](auto policy, auto const& update) {
      bool const clips = number % 2 == 0;
      auto const course =
          row_model::expected_course(data, clips, orders_of(table, first_layers(cuts)), one.weights,
                                     row_model::AnyOptimizer::of(update));
      sg::Options options;
      if (clips) options.clip_norm = clip;
      options.replicas = one.replicas;
      CAPTURE(number, stages, clips);
      auto on_threads = grouped(policy, sg::host::Threads{std::array{1, 2, 9}[number % 3]}, cuts,
                                one.schedule, options, update);
      REQUIRE(first_difference(on_threads, data, course) == -1);
      auto clocked = grouped(policy, sg::sim::VirtualClock{.jitter = 0.5, .seed = number}, cuts,
                             one.schedule, options, update);
      REQUIRE(first_difference(clocked, data, course) == -1);
      ++number;
    };
    check(collective::AllReduce<>{.shard_optimizer = true, .measured_steps = 1},
          sg::optimizer::Lamb{.rate = 0.05});
    check(collective::AllReduce<>{.measured_steps = 1}, sg::optimizer::Muon{.rate = 0.05});
  }
}

TEST_CASE("engine/GradientGroups: a decision is renewed after as many steps as asked", "[engine]") {
  sg::Options options;
  options.replicas = {2};
  auto train = grouped(collective::AllReduce<grouping::Single>{}, sg::host::Threads{2}, {},
                       made(sg::schedule::GPipe{}), options);
  CHECK(train.program(2).groups == sg::List<sg::GradientGroup>{{0, 0, 6}});
  auto renewed =
      grouped(collective::AllReduce<>{.measured_steps = 2, .renew_every = 3},
              sg::sim::VirtualClock{.sum = {100, 0.001}}, {}, made(sg::schedule::GPipe{}), options);
  std::vector<std::size_t> groups;
  for (int s = 0; s < 14; ++s) {
    groups.push_back(renewed.program(2).groups.size());
    sg::run(renewed.step(row_model::batch(s, 2, 4, false)));
  }
  // One step warms up, two are measured, three run as decided.
  CHECK(groups == std::vector<std::size_t>{6, 6, 6, 1, 1, 1, 6, 6, 6, 1, 1, 1, 6, 6});
}

TEST_CASE("engine/GradientGroups: a rank's sums come in the order of its last backwards",
          "[engine]") {
  // Interleaved: rank r has stages r and r + 2, and is done with the later one first.
  sg::Options options;
  options.replicas = {2, 2};
  auto train = grouped(collective::AllReduce<grouping::Single>{}, sg::host::Threads{1}, {1, 3, 5},
                       made(sg::schedule::Interleaved{}), options);
  auto const& program = train.program(4);
  int several = 0;
  for (auto const& sums : program.ranks) {
    if (sums.reducer_for < 0) continue;
    std::map<int, std::size_t> last;  // by stage: where the rank beside has its last backward
    auto const& code = program.ranks[static_cast<std::size_t>(sums.reducer_for)].code;
    for (std::size_t i = 0; i < code.size(); ++i)
      if (code[i].op == sg::Op::backward || code[i].op == sg::Op::backward_part)
        last[code[i].stage] = i;
    std::size_t before = 0;
    for (auto const& in : sums.code) {
      if (in.op != sg::Op::reduce) continue;
      CHECK(last.at(in.stage) >= before);
      several += before != 0 ? 1 : 0;
      before = last.at(in.stage);
    }
  }
  CHECK(several == 4);
}

namespace {

/// Keeps the line that it was asked with last.
struct Asked {
  using policy_tag = sg::GroupingTag;
  static inline collective::CostLine line;
  [[nodiscard]] std::vector<collective::LayerGroup> groups(collective::Backward const& backward,
                                                           collective::CostLine cost) const {
    line = cost;
    return grouping::Layerwise{}.groups(backward, cost);
  }
};

}  // namespace

TEST_CASE("engine/GradientGroups: what has no parameters says nothing about the time of sums",
          "[engine]") {
  // The second stage begins with two layers without parameters, which are a group of 0 bytes.
  sg::Options options;
  options.replicas = {1, 2};
  auto train = grouped(collective::AllReduce<Asked>{.measured_steps = 2},
                       sg::sim::VirtualClock{.sum = {100, 0.001}}, {2}, made(sg::schedule::GPipe{}),
                       options);
  for (int s = 0; s < 8; ++s) sg::run(train.step(row_model::batch(s, 2, 4, false)));
  CHECK(Asked::line.startup_s == Approx(100));
  CHECK(Asked::line.per_byte_s == Approx(0.001));
}

namespace {

/// Rows that count as those of a device.
struct Streamed : Matrix {
  static constexpr bool rows_on_stream = true;
};
struct Weighted {
  using Input = Streamed;
  using Output = Streamed;
  sg::Parameter<> wide;
  sg::Parameter<double> narrow{"narrow", {1, 2, 3}};
  explicit Weighted(std::size_t size) : wide("wide", std::vector<float>(size)) {}
  auto parameters() { return std::tie(wide, narrow); }
  void forward(sg::Context&, Streamed const& x, Streamed& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, Streamed const&, Streamed const& dy, Streamed& dx,
                sg::NothingSaved&) {
    dx = dy;
  }
};

/// Host memory behind the functions of a back end. Notes who has gradients squared, and how much.
struct Squares {
  std::size_t holder = 0;
  std::vector<std::pair<void const*, std::size_t>> taken;  // gradient, holder
  std::map<std::size_t, std::size_t> bytes;                // by holder
  std::size_t largest = 0;
  static Squares*& current() {
    static Squares* squares = nullptr;
    return squares;
  }
  static sg::detail::ParameterMemory memory() {
    sg::detail::ParameterMemory made{};
    made.allocate = [](sg::detail::ParameterMemory const&, std::size_t size) {
      void* const block = ::operator new(size, std::align_val_t{sg::alignment_bytes});
      return std::memset(block, 0, size);
    };
    made.release = [](sg::detail::ParameterMemory const&, void* block) noexcept {
      ::operator delete(block, std::align_val_t{sg::alignment_bytes});
    };
    made.upload = made.download =
        made.copy = [](sg::detail::ParameterMemory const&, void* to, void const* from,
                       std::size_t size) { std::memcpy(to, from, size); };
    made.sum_squares = [](sg::detail::ParameterMemory const&, sg::ElementType type,
                          void const* gradient, std::size_t size, double*) {
      std::size_t const taken = size * sg::element_bytes(type);
      current()->taken.emplace_back(gradient, current()->holder);
      current()->bytes[current()->holder] += taken;
      current()->largest = std::max(current()->largest, taken);
    };
    return made;
  }
};

}  // namespace

TEST_CASE("engine/GradientGroups: holders of a stage share the squares of its gradients",
          "[engine]") {
  for (int const holders : {2, 3}) {
    sg::Options options;
    options.replicas = {holders};
    options.clip_norm = 1;
    sg::List<sg::detail::Layer> weighted;
    sg::detail::append_layers(
        weighted, std::vector<Weighted>{Weighted(100), Weighted(40), Weighted(300), Weighted(7)});
    sg::detail::Machine machine(std::move(weighted), {}, options, 0, Squares::memory());
    machine.run.grouping = sg::detail::grouping_of(collective::AllReduce<grouping::Single>{});
    std::vector<int> const cuts;
    options.replicas.part()->extend(machine, sg::detail::Setup{.cuts = cuts, .options = options});
    sg::LayOutOptions laying;
    laying.replicas = &machine.options().replicas;
    laying.groups = machine.gradient_groups()->groups(machine);
    laying.shared = &sg::detail::shared_passes;
    auto const program = sg::lay_out(sg::schedule::GPipe{}.table({1, 2, 1}), laying);
    machine.load(program);
    Squares squares;
    Squares::current() = &squares;
    std::vector<double> sums(machine.model.parameter_count());
    for (; squares.holder < static_cast<std::size_t>(holders); ++squares.holder)
      sg::detail::StepEnd{machine.model, machine.run}.finish(static_cast<int>(squares.holder),
                                                             sums.data());
    CAPTURE(holders);
    REQUIRE(squares.taken.size() == machine.model.parameter_count());
    std::set<void const*> once;
    for (auto const& [gradient, holder] : squares.taken) once.insert(gradient);
    CHECK(once.size() == squares.taken.size());
    std::size_t total = 0;
    for (auto const& [holder, bytes] : squares.bytes) total += bytes;
    for (auto const& [holder, bytes] : squares.bytes)
      CHECK(bytes <= total / static_cast<std::size_t>(holders) + squares.largest);
    CHECK(squares.bytes.size() == static_cast<std::size_t>(holders));
  }
}

#if defined(__GLIBC__) && !defined(TEST_SANITIZED)
namespace {

/// Groups every layer with the one above it or not, otherwise in each decision.
struct Fickle {
  using policy_tag = sg::GroupingTag;
  static inline unsigned decisions = 0;
  [[nodiscard]] std::vector<collective::LayerGroup> groups(collective::Backward const& backward,
                                                           collective::CostLine cost) const {
    auto const each = grouping::Layerwise{}.groups(backward, cost);
    ++decisions;
    std::vector<collective::LayerGroup> merged;
    for (std::size_t g = 0; g < each.size(); ++g)
      if (!merged.empty() && (decisions >> (g % 8)) % 2 == 1)
        merged.back().lowest = each[g].lowest;
      else
        merged.push_back(each[g]);
    return merged;
  }
};

}  // namespace

TEST_CASE("engine/GradientGroups: programs of groupings that were given up do not gather",
          "[engine]") {
  sg::Options options;
  options.replicas = {2};
  auto train =
      grouped(collective::AllReduce<Fickle>{.measured_steps = 1, .renew_every = 1},
              sg::sim::VirtualClock{.sum = {100, 0.001}}, {}, made(sg::schedule::GPipe{}), options);
  auto const data = row_model::batch(0, 2, 4, false);
  auto const other = row_model::batch(1, 3, 4, false);
  auto early = train.step(other);  // of a grouping that is given up before it runs
  std::set<std::string> seen;
  auto const decide = [&](int times) {
    for (int s = 0; s < 4 * times; ++s) {
      sg::run(train.step(data));
      std::string name;
      for (auto const& group : train.program(2).groups) name += std::to_string(group.lowest) + " ";
      seen.insert(name);
    }
  };
  decide(8);
  auto const held = mallinfo2().uordblks;
  std::size_t const few = seen.size();
  decide(40);
  CHECK(seen.size() > few + 10);
  CHECK(mallinfo2().uordblks < held + 20000);
  sg::run(std::move(early));
  CHECK(train.steps() == 4 * 48 + 1);
}
#endif

namespace {

/// Throws, or cancels, in one backward.
struct Trap {
  using Input = Matrix;
  using Output = Matrix;
  std::function<void(sg::Context&)>* hook;
  void forward(sg::Context&, Matrix const& x, Matrix& y, sg::NothingSaved&) { y = x; }
  void backward_input(sg::Context& context, Matrix const&, Matrix const& dy, Matrix& dx,
                      sg::NothingSaved&) {
    dx = dy;
    (*hook)(context);
  }
};

}  // namespace

TEST_CASE(
    "engine/GradientGroups: trouble between the sums of a stage leaves parameters as they were",
    "[engine]") {
  std::function<void(sg::Context&)> hook = [](sg::Context&) {};
  auto const data = row_model::batch(0, 3, 5, true);
  auto const check = [&](auto device) {
    auto const make = [&] {
      sg::Options options;
      options.replicas = {3};
      return sg::Pipeline{sg::Sequential{Embedding{}, Trap{&hook}, Dense{}, Trap{&hook}, Dense{5}}}
          .with(sg::partition::Cuts{}, device, made(sg::schedule::GPipe{}), Loss{}, optimizer(),
                collective::AllReduce<grouping::Layerwise>{}, options);
    };
    auto undisturbed = make();
    sg::run(undisturbed.step(data));
    for (int const layer : {1, 3})  // layers above have been added up, or are just now
      for (int const replica : {0, 1, 2})
        for (bool const cancel : {false, true}) {
          CAPTURE(layer, replica, cancel);
          auto train = make();
          auto const before = bits(train);
          stagger::stop_source stop;
          hook = [&](sg::Context& context) {
            std::size_t const first = data.inputs[2].extent(0) * static_cast<std::size_t>(replica);
            if (context.layer() != layer || context.microbatch() != 2 ||
                context.first_row() != first / 3)
              return;
            if (!cancel) throw std::runtime_error("trap");
            stop.request_stop();
          };
          CHECK_THROWS(sg::run(train.step(data, stop.get_token())));
          CHECK(bits(train) == before);
          hook = [](sg::Context&) {};
          sg::run(train.step(data));
          CHECK(bits(train) == bits(undisturbed));
        }
  };
  check(sg::sim::VirtualClock{});
  for (int const threads : {1, 3, 6}) check(sg::host::Threads{threads});
}

TEST_CASE("engine/GradientGroups: who waits for a gradient is named when the deadline passes",
          "[engine]") {
  // The held action is released after many deadlines. Where the watcher was not given a core in
  // that time, all of it is tried again with a longer one.
  std::atomic<bool> held{false};
  std::atomic<bool> open{true};
  std::atomic<bool> ended{false};
  std::function<void(sg::Context&)> hook = [&](sg::Context& context) {
    if (open || context.layer() != 1 || context.microbatch() != 2 || context.first_row() == 0)
      return;
    held = true;
    while (!open) std::this_thread::yield();
  };
  auto const data = row_model::batch(0, 3, 5, true);
  std::string said;
  for (double deadline_s = 0.02; deadline_s < 5; deadline_s *= 2) {
    sg::Options options;
    options.replicas = {2};
    options.deadline_s = deadline_s;
    auto train = sg::Pipeline{sg::Sequential{Embedding{}, Trap{&hook}, Dense{}}}.with(
        sg::partition::Cuts{}, sg::host::Threads{4}, made(sg::schedule::GPipe{}), Loss{},
        optimizer(), collective::AllReduce<grouping::Layerwise>{}, options);
    auto const before = bits(train);
    held = open = ended = false;
    std::thread runner([&] {
      try {
        sg::run(train.step(data));
        said.clear();
      } catch (sg::Error const& error) {
        said = error.what();
      }
      ended = true;
    });
    while (!held && !ended) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::duration<double>(8 * deadline_s));
    open = true;
    runner.join();
    if (said.empty()) continue;
    REQUIRE(bits(train) == before);
    try {
      sg::run(train.step(data));
    } catch (sg::Error const& late) {
      REQUIRE(late.code() == sg::Errc::deadline);  // no rank was given a core
      continue;
    }
    if (said.find("rank 1 is still at 0B2") != said.npos &&
        said.find("the reducer of rank 0 waits before the sum of stage 0's gradients for rank 1") !=
            said.npos)
      break;
  }
  CHECK_THAT(said, Catch::StartsWith("no rank moved for "));
  CHECK_THAT(said, Catch::Contains("rank 1 is still at 0B2"));
  CHECK_THAT(said,
             Catch::Contains(
                 "the reducer of rank 0 waits before the sum of stage 0's gradients for rank 1"));
}

}  // namespace gradient_groups_test
