// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <stagger/engine/groups.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/placement/explicit_map.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/zero_bubble_v.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "engine/row_oracle.hpp"
#include "engine/split_model.hpp"
#include "world.hpp"

namespace batch_test {

// What processes are given as a batch: all the same, or each what its ranks read. Each assertion
// holds in every process.

using namespace small_model;

namespace {

template <class Take> std::string sentence_of(Take take) {
  try {
    take();
  } catch (sg::Error const& error) {
    return error.what();
  }
  return "no error";
}
bool has(std::string const& words, std::string const& part) {
  return words.find(part) != std::string::npos;
}

bool same(std::vector<Matrix> const& a, std::vector<Matrix> const& b) {
  bool same = a.size() == b.size();
  for (std::size_t m = 0; same && m < a.size(); ++m)
    same = std::vector(a[m].begin(), a[m].end()) == std::vector(b[m].begin(), b[m].end());
  return same;
}

/// Steps, an evaluation and predictions of a pipeline over processes that is given `part_of(batch)`
/// have the bits of one on threads that is given the batch.
template <class There, class Here, class BatchOf, class PartOf>
void require_same(There& there, Here& here, BatchOf batch_of, PartOf part_of) {
  for (int step = 0; step < 3; ++step) {
    Batch const whole = batch_of(step);
    Batch const part = part_of(whole);
    for (bool const trains : {true, false}) {
      auto const a = sg::run(trains ? there.step(part) : there.evaluate(part));
      auto const b = sg::run(trains ? here.step(whole) : here.evaluate(whole));
      REQUIRE(a.loss == b.loss);
      REQUIRE(a.terms == b.terms);
      REQUIRE(a.gradient_norm == b.gradient_norm);
    }
    std::vector<Matrix> a(whole.inputs.size());
    std::vector<Matrix> b(whole.inputs.size());
    sg::run(there.predict(part.inputs, a));
    sg::run(here.predict(whole.inputs, b));
    REQUIRE(same(a, b));
  }
  there.gather_parameters();
  REQUIRE(bits(there) == bits(here));
}

sg::Options clipping() {
  sg::Options options;
  options.clip_norm = 0.1;
  return options;
}

template <class Device> auto trained(Made const& schedule, int stages, Device device) {
  return sg::Pipeline{model()}.with(sg::partition::Even{stages}, schedule, Loss{}, optimizer(),
                                    device, clipping());
}

}  // namespace

TEST_CASE("mpi/batch: evaluations and predictions of different batches are refused", "[mpi]") {
  if (processes() == 1) return;
  int const odd = processes() / 2;
  auto const schedule = made(sg::schedule::GPipe{});
  auto train = trained(schedule, processes(), sg::mpi::Processes{});
  auto here = trained(schedule, processes(), sg::host::Threads{1});
  auto const data = batch(0, 4, false);
  auto other = data;
  if (process() == odd) other.inputs[2] = batch(1, 4, false).inputs[2];
  std::vector<Matrix> outputs(4);
  for (auto const& got : {sentence_of([&] { sg::run(train.evaluate(other)); }),
                          sentence_of([&] { sg::run(train.predict(other.inputs, outputs)); })}) {
    INFO(got);
    REQUIRE(has(got, "processes "));
    REQUIRE(has(got, " are given different inputs for a forward-only step of 4 microbatches; "));
    REQUIRE(has(got, "mpi::Processes::check_batches"));
  }
  REQUIRE(sg::run(train.evaluate(data)).loss == sg::run(here.evaluate(data)).loss);

  auto unchecked = trained(schedule, processes(), sg::mpi::Processes{.check_batches = false});
  auto mixed = data;  // the inputs of the first process, the targets of the last
  mixed.inputs[0] = data.inputs[1];
  other = process() == 0 ? mixed : data;
  REQUIRE(sg::run(unchecked.step(other)).loss == sg::run(here.step(mixed)).loss);
}

TEST_CASE("mpi/batch: terms that one process counts and that are no number fail in all", "[mpi]") {
  struct SaysTerms : Loss {
    double terms(Target const& target) const {
      return target[0] == -7 ? std::numeric_limits<double>::quiet_NaN() : Loss::terms(target);
    }
  };
  using sg::host::Threads;
  auto train = sg::Pipeline{model()}.with(sg::partition::Even{processes()},
                                          made(sg::schedule::GPipe{}), SaysTerms{}, optimizer(),
                                          sg::mpi::Processes{.check_batches = false}, clipping());
  auto here = trained(made(sg::schedule::GPipe{}), processes(), Threads{1});
  auto const data = batch(0, 4, false);
  for (int bad = 0; bad < processes(); ++bad) {
    auto other = data;
    if (process() == bad) other.targets[2][0] = -7;
    auto const got = sentence_of([&] { sg::run(train.step(other)); });
    INFO(got);
    REQUIRE(has(got, "the loss counts nan terms in the target of microbatch 2; "));
    REQUIRE(train.steps() == bad);
    REQUIRE(sg::run(train.step(data)).loss == sg::run(here.step(data)).loss);
  }
  train.gather_parameters();
  REQUIRE(bits(train) == bits(here));
}

TEST_CASE("mpi/batch: a process may leave out what its ranks do not read", "[mpi]") {
  using namespace sg::schedule;
  int const n = processes();
  struct Case {
    Made schedule;
    int ranks;
    std::vector<int> inputs, targets;  // ranks that read them
  };
  for (Case const& of :
       {Case{made(OneFOneB{}), n, {0}, {n - 1}}, Case{made(GPipe{}), 7, {0}, {6}},
        Case{made(ZeroBubbleV{}), n < 4 ? n : 3, {0}, {0}},
        Case{made(Chimera{}), n < 3 ? 2 : 4, {0, n < 3 ? 1 : 3}, {0, n < 3 ? 1 : 3}}}) {
    if (of.ranks < n) continue;
    CAPTURE(of.ranks, of.schedule.each);
    int const stages = of.ranks * of.schedule.each;
    auto there = trained(of.schedule, stages, sg::mpi::Processes{});
    auto here = trained(of.schedule, stages, sg::host::Threads{1});
    auto const reads = [&](std::vector<int> const& ranks) {
      for (int const rank : ranks)
        if (rank * n / of.ranks == process()) return true;
      return false;
    };
    auto const part_of = [&](Batch part) {
      part.microbatches = part.inputs.size();
      if (!reads(of.inputs)) part.inputs.clear();
      if (!reads(of.targets)) part.targets.clear();
      return part;
    };
    require_same(there, here, [](int step) { return batch(step, 4, true); }, part_of);

    auto missing = part_of(batch(3, 4, true));
    if (reads(of.inputs)) missing.inputs.clear();
    auto const got = sentence_of([&] { sg::run(there.step(missing)); });
    INFO(got);
    REQUIRE(has(got, " runs the first stage and needs the inputs; give it them"));
    auto none = part_of(batch(3, 4, true));
    if (reads(of.targets)) none.targets.clear();
    REQUIRE(has(sentence_of([&] { sg::run(there.evaluate(none)); }), " needs the targets"));
    auto said = part_of(batch(3, 4, true));
    if (process() == 0) said.microbatches = 3;
    REQUIRE(has(sentence_of([&] { sg::run(there.step(said)); }),
                "Batch::microbatches says 3, but 4 are given"));
    sg::run(there.step(part_of(batch(4, 4, true))));
  }
}

namespace {

using row_model::Weights;

/// The rows of value `whole` that replicas of a position in this process work on.
/// @param first  the position's first rank
Tokens own_rows(Tokens const& whole, std::vector<std::size_t> const& weights, int first,
                int ranks) {
  std::size_t const rows = whole.extent(0);
  std::size_t begin = rows;
  std::size_t end = 0;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    if ((first + static_cast<int>(k)) * processes() / ranks != process()) continue;
    begin = std::min(begin, row_model::border(weights, rows, k));
    end = row_model::border(weights, rows, k + 1);
  }
  return begin < end ? row_model::cut(whole, rows, begin, end) : Tokens{};
}

Batch own_part(Batch const& whole, Weights const& weights) {
  int ranks = 0;
  for (auto const& position : weights) ranks += static_cast<int>(position.size());
  int const last = ranks - static_cast<int>(weights.back().size());
  Batch part{.inputs = {}, .targets = {}, .microbatches = whole.inputs.size()};
  for (auto const& x : whole.inputs)
    if (auto own = own_rows(x, weights.front(), 0, ranks); !own.empty())
      part.inputs.push_back(std::move(own));
  for (auto const& t : whole.targets)
    if (auto own = own_rows(t, weights.back(), last, ranks); !own.empty())
      part.targets.push_back(std::move(own));
  return part;
}

struct RowCase {
  sg::Replicas replicas;
  Weights weights;
};

auto over_rows(RowCase const& of, sg::mpi::Processes device) {
  auto options = clipping();
  options.replicas = of.replicas;
  auto const cuts = of.weights.size() == 1 ? std::vector<int>{} : even_cuts(2);
  return row_model::pipeline(device, cuts, made(sg::schedule::OneFOneB{}), options);
}

}  // namespace

TEST_CASE("mpi/batch: replicas that are each given their own rows have the bits of the whole batch",
          "[mpi]") {
  for (RowCase const& of : {RowCase{{4}, {{1, 1, 1, 1}}}, RowCase{{2, 2}, {{1, 1}, {1, 1}}},
                            RowCase{{3, 1}, {{1, 1, 1}, {1}}}, RowCase{{1, 3}, {{1}, {1, 1, 1}}},
                            RowCase{{{1, 3}, {2, 1, 1}}, {{1, 3}, {2, 1, 1}}}}) {
    CAPTURE(of.weights.size(), of.weights.front().size());
    auto there = over_rows(of, sg::mpi::Processes{.own_rows = true});
    auto options = clipping();
    options.replicas = of.replicas;
    auto here = row_model::pipeline(sg::host::Threads{1},
                                    of.weights.size() == 1 ? std::vector<int>{} : even_cuts(2),
                                    made(sg::schedule::OneFOneB{}), options);
    require_same(
        there, here, [](int step) { return row_model::batch(step, 4, 5, true); },
        [&](Batch const& whole) { return own_part(whole, of.weights); });
  }
}

TEST_CASE("mpi/batch: rows that do not belong together are refused, and the next step is taken",
          "[mpi]") {
  if (processes() != 2 && processes() != 4) return;
  RowCase const of{{4}, {{1, 1, 1, 1}}};
  auto const whole = row_model::batch(0, 3, 8, false);
  auto const part = own_part(whole, of.weights);
  auto train = over_rows(of, sg::mpi::Processes{.own_rows = true});
  auto const refused = [&](Batch const& wrong) {
    auto const got = sentence_of([&] { sg::run(train.step(wrong)); });
    sg::run(train.step(part));
    return got;
  };
  auto shorter = part;
  if (process() == 1)
    shorter.inputs[2] = row_model::cut(shorter.inputs[2], shorter.inputs[2].extent(0), 0, 1);
  auto const got = refused(shorter);
  INFO(got);
  REQUIRE(has(got, "process "));
  REQUIRE(has(got, " rows that microbatch 2 has in all processes, but its replicas work on "));
  auto none = part;
  if (process() == 1) none.inputs.clear();
  REQUIRE(has(refused(none), "process 1 runs the first stage and needs the inputs"));

  auto given = over_rows(of, sg::mpi::Processes{});  // whole batches: the rows must be known
  auto left_out = whole;
  if (process() == 1) left_out.inputs.clear();
  REQUIRE(has(sentence_of([&] { sg::run(given.step(left_out)); }),
              "process 1 needs the inputs, whose rows replicas divide"));
  sg::run(given.step(whole));
}

TEST_CASE("mpi/batch: processes with and without rows of their own find out", "[mpi]") {
  if (processes() == 1) return;
  RowCase const of{{4}, {{1, 1, 1, 1}}};
  REQUIRE(has(sentence_of([&] {
                (void)over_rows(
                    of, sg::mpi::Processes{.join_deadline_s = 20, .own_rows = process() != 0});
              }),
              "ranks disagree on Processes::own_rows: rank 0 has 'false'"));
}

TEST_CASE("mpi/batch: rows that are not one block are refused", "[mpi]") {
  if (processes() != 2) return;
  auto options = clipping();
  options.replicas = {4};
  auto apart = sg::Pipeline{row_model::model()}.with(sg::partition::Cuts{}, Loss{},
                                                     sg::mpi::Processes{.own_rows = true}, options,
                                                     sg::placement::ExplicitMap{{0, 1, 0, 1}});
  options.replicas = {2, 2};
  auto both_ways = row_model::pipeline(sg::mpi::Processes{.own_rows = true}, even_cuts(2),
                                       made(sg::schedule::Chimera{}), options);
  auto const data = row_model::batch(0, 4, 4, false);
  auto const words = "the rows that a process reads are not one block of each microbatch";
  REQUIRE(has(sentence_of([&] { sg::run(apart.step(data)); }), words));
  REQUIRE(has(sentence_of([&] { sg::run(both_ways.step(data)); }), words));
}

TEST_CASE("mpi/batch: members of a group are given their rows, or whole ones of a shared layer",
          "[mpi]") {
  if (processes() != 2) return;
  auto const make = [](auto device) {
    return split_model::pipeline<double>(device, split_model::Case{.members = 2, .groups = 1});
  };
  auto there = make(sg::mpi::Processes{.own_rows = true});
  auto here = make(sg::host::Threads{1});
  auto const data = split_model::batch<double>(0, 2, 6);
  auto part = data;  // the layer that is read first is shared by no one, the last one by both
  auto const n = static_cast<std::size_t>(process());
  for (auto& x : part.inputs) {
    std::size_t const rows = x.extent(0);
    x = row_model::cut(x, rows, rows * n / 2, rows * (n + 1) / 2);
  }
  for (int step = 0; step < 2; ++step)
    REQUIRE(sg::run(there.step(part)).loss == sg::run(here.step(data)).loss);
}

namespace {

/// Groups of two ranks that share all layers, over two processes.
template <class Device> auto shared_layers(Device device, int ranks, std::vector<int> map) {
  using Linear = split_model::Linear<double>;
  return sg::Pipeline{
      sg::Sequential{Linear{split_model::inputs, 8, 1}, Linear{8, split_model::outputs, 2}}}
      .with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
            sg::loss::MeanSquaredError<double>{}, split_model::optimizer(), device,
            sg::placement::ExplicitMap{std::move(map)}, sg::Options{.replicas = {ranks}});
}

}  // namespace

TEST_CASE("mpi/batch: members of a group in several processes are each given the rows of the group",
          "[mpi]") {
  if (processes() != 2) return;
  for (std::vector<int> const& map :
       {std::vector{0, 0, 1, 1}, std::vector{1, 1, 0, 0}, std::vector{1, 0, 1, 1},
        std::vector{1, 0, 0, 0}, std::vector{0, 0, 0, 1}, std::vector{0, 1, 0, 1}}) {
    CAPTURE(map);
    auto there = shared_layers(sg::mpi::Processes{.own_rows = true}, 4, map);
    auto here = shared_layers(sg::host::Threads{1}, 4, std::vector(4, 0));
    bool const reads[] = {map[0] == process() || map[1] == process(),
                          map[2] == process() || map[3] == process()};
    auto const own = [&](auto& value) {
      std::size_t const rows = value.extent(0);
      value = row_model::cut(value, rows, reads[0] ? 0 : rows / 2, reads[1] ? rows : rows / 2);
    };
    for (int step = 0; step < 3; ++step) {
      auto const whole = split_model::batch<double>(step, 2, 5);
      auto part = whole;
      for (auto& x : part.inputs) own(x);
      for (auto& t : part.targets) own(t);
      auto const a = sg::run(there.step(part));
      auto const b = sg::run(here.step(whole));
      REQUIRE(a.loss == b.loss);
      REQUIRE(a.terms == b.terms);
    }
    there.gather_parameters();
    REQUIRE(bits(there) == bits(here));
  }
  auto apart = shared_layers(sg::mpi::Processes{.own_rows = true}, 6, {0, 0, 0, 1, 1, 1});
  REQUIRE(has(
      sentence_of([&] { sg::run(apart.step(split_model::batch<double>(0, 2, 6))); }),
      "processes read some rows of each microbatch together, and others apart, because of the "));
}

TEST_CASE("mpi/batch: processes that are all given the whole batch as their own rows are refused",
          "[mpi]") {
  if (processes() != 2 && processes() != 4) return;
  RowCase const of{{4}, {{1, 1, 1, 1}}};
  auto const whole = row_model::batch(0, 3, 8, false);
  auto train = over_rows(of, sg::mpi::Processes{.own_rows = true});
  auto const before = bits(train);
  auto const refused = [&](auto take) {
    auto const got = sentence_of(take);
    INFO(got);
    REQUIRE(has(got, " are given the same inputs for a "));
    REQUIRE(has(got, "; give each process only the rows of its own replicas"));
  };
  refused([&] { sg::run(train.step(whole)); });
  refused([&] { sg::run(train.evaluate(whole)); });
  std::vector<Matrix> outputs(whole.inputs.size());
  refused([&] { sg::run(train.predict(whole.inputs, outputs)); });
  train.gather_parameters();
  REQUIRE(bits(train) == before);

  auto alike = whole;  // equal inputs may have targets of their own
  for (auto& t : alike.targets) t[0] = process();
  sg::run(train.step(alike));
  auto const none = row_model::batch(0, 3, 0, false);  // and no rows are like no others
  auto const says = sentence_of([&] { sg::run(train.step(none)); });
  REQUIRE(!has(says, "the same inputs"));
  auto unchecked = over_rows(of, sg::mpi::Processes{.check_batches = false, .own_rows = true});
  sg::run(unchecked.step(whole));
}

TEST_CASE("mpi/batch: what no rank reads of a process's own rows is not compared", "[mpi]") {
  if (processes() != 4) return;
  RowCase const of{{2, 2}, {{1, 1}, {1, 1}}};
  auto const whole = row_model::batch(0, 3, 8, false);
  auto part = own_part(whole, of.weights);
  auto train = over_rows(of, sg::mpi::Processes{.own_rows = true});
  auto const other = row_model::batch(process() + 1, 3, 4, false);
  if (part.inputs.empty()) part.inputs = other.inputs;
  if (part.targets.empty()) part.targets = other.targets;
  auto here = over_rows(of, sg::mpi::Processes{});
  REQUIRE(sg::run(train.step(part)).loss == sg::run(here.step(whole)).loss);
}

TEST_CASE("mpi/batch: a prediction needs room for its outputs in every process", "[mpi]") {
  auto train = trained(made(sg::schedule::GPipe{}), processes(), sg::mpi::Processes{});
  auto const data = batch(0, 4, true);
  std::vector<Matrix> none;
  REQUIRE(has(sentence_of([&] { sg::run(train.predict(data.inputs, none)); }),
              "4 inputs need as many outputs, not 0"));
  std::vector<Matrix> outputs(process() == 0 ? 0 : 4);
  REQUIRE(has(sentence_of([&] { sg::run(train.predict(data.inputs, outputs)); }),
              "4 inputs need as many outputs, not 0"));
  outputs.resize(4);
  sg::run(train.predict(data.inputs, outputs));
  for (auto const& y : outputs) REQUIRE(!y.empty());
}

TEST_CASE("mpi/Session: a process knows its number", "[mpi]") {
  sg::mpi::Session const again;
  REQUIRE(again.process() == process());
  REQUIRE(again.processes() == processes());
}

}  // namespace batch_test
