// SPDX-License-Identifier: Apache-2.0
#include <stagger/partition/layer_split.hpp>

#include "catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/program/check_program.hpp>
#include <stagger/program/describe.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/sim/virtual_clock.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/train/pipeline.hpp>

#include "split_model.hpp"

namespace each_pass_test {

using namespace split_model;
using sg::collective::ParameterServer;
using sg::partition::Update;
using sg::staleness::LocalSgd;

namespace {

/// The published algorithm on one device, as a loop: which layers are updated after each microbatch,
/// and how many of these updates a microbatch sees.
template <class One> class Sequential {
 public:
  Sequential(One& one, std::size_t first, std::function<int(std::size_t layer, int m)> seen)
      : parts_(one.parts()), first_(first), seen_(std::move(seen)) {}

  template <class T, class Loss> void step(Batch<T> const& data, Loss const& loss) {
    double terms = 0;
    for (auto const& target : data.targets) terms += loss.terms(target);
    parts_.context.begin_step(steps_, parts_.seed, true);
    auto const passes = static_cast<int>(data.inputs.size());
    std::vector<std::vector<Bytes>> versions(layers());  // [layers][updates]
    for (std::size_t l = first_; l < layers(); ++l) versions[l].push_back(values(l));
    for (int m = 0; m < passes; ++m) {
      for (std::size_t l = first_; l < layers(); ++l)
        set(l, versions[l][static_cast<std::size_t>(seen_(l, m))]);
      auto const at = static_cast<std::size_t>(m);
      for (std::size_t l = 0; l < layers(); ++l)
        parts_.loop.forward(parts_.context, l, &data.inputs[at], m);
      std::size_t const last = layers() - 1;
      parts_.context.begin_action(nullptr, static_cast<int>(last), m);
      loss.value_and_gradient(parts_.context, *value<T>(parts_.loop.y[last][0]), data.targets[at],
                              1 / terms, *value<T>(parts_.loop.dy[last][0]));
      for (std::size_t l = layers(); l-- > 0;)
        parts_.loop.backward(parts_.context, l, &data.inputs[at], m);
      for (std::size_t l = first_; l < layers(); ++l) {
        set(l, versions[l].back());
        parts_.parameters[l].update(parts_.optimizer, {1, steps_ * passes + m + 1});
        versions[l].push_back(values(l));
      }
    }
    ++steps_;
    for (std::size_t l = 0; l < first_; ++l)
      parts_.parameters[l].update(parts_.optimizer, {1, steps_});
  }

 private:
  using Bytes = std::vector<std::byte>;
  [[nodiscard]] std::size_t layers() const { return parts_.parameters.size(); }
  template <class T> static Matrix<T>* value(void* at) { return static_cast<Matrix<T>*>(at); }
  [[nodiscard]] Bytes values(std::size_t l) const {
    auto const bytes = parts_.parameters[l].values();
    return {bytes.begin(), bytes.end()};
  }
  void set(std::size_t l, Bytes const& to) {
    std::copy(to.begin(), to.end(), parts_.parameters[l].values().begin());
  }

  typename One::Parts parts_;
  std::size_t first_;
  std::function<int(std::size_t, int)> seen_;
  std::int64_t steps_ = 0;
};

int all_before(std::size_t, int m) { return m; }

Case each_pass(Case of) {
  of.update = Update::each_pass;
  return of;
}

/// Three steps beside the loop. @return how far they come apart
template <class Device, class Seen>
double apart(Device device, Case const& of, std::size_t first, Seen seen) {
  auto train = pipeline<double>(std::move(device), each_pass(of));
  auto one = one_device<double>(of);
  Sequential loop(one, first, seen);
  for (int step = 0; step < 3; ++step) {
    auto const data = batch<double>(step, of.microbatches, 17);
    sg::run(train.step(data));
    loop.step(data, sg::loss::MeanSquaredError<double>{});
  }
  CHECK(train.steps() == 3);
  auto const data = batch<double>(3, of.microbatches, 17);
  CHECK(sg::run(train.evaluate(data)).loss == Approx(one.evaluate(data).loss).epsilon(1e-10));
  return difference<double>(train, one);
}

/// All weights after one step of plain gradient descent.
std::vector<double> after_step(Case const& of, double rate) {
  auto train = pipeline<double>(sg::host::Threads{1}, of);
  train.optimizer().rate = rate;
  train.optimizer().momentum = 0;
  sg::run(train.step(batch<double>(0, of.microbatches, 17)));
  std::vector<double> weights;
  for (auto const& state : train.parameters()) {
    std::size_t const before = weights.size();
    weights.resize(before + state.value.size() / sizeof(double));
    std::memcpy(weights.data() + before, state.value.data(), state.value.size());
  }
  return weights;
}

}  // namespace

TEST_CASE("engine/each_pass: on one position, as the published loop on one device", "[engine]") {
  // With one member nothing is added in another order: bit for bit, with replicas and without.
  for (int const microbatches : {1, 2, 5}) {
    Case alone{.members = 1, .microbatches = microbatches};
    CHECK(apart(sg::host::Threads{1}, alone, 1, &all_before) == 0);
    alone.counts = {1};
    CHECK(apart(sg::host::Threads{1}, alone, 1, &all_before) == 0);
    alone.options.recompute = true;
    CHECK(apart(sg::sim::VirtualClock{}, alone, 1, &all_before) == 0);
  }
  for (unsigned const pattern : {15U, 13U, 10U, 8U})
    for (int const members : {2, 3, 4})
      for (bool const pairs : {false, true})
        for (int const microbatches : {1, members, 2 * members}) {
          CAPTURE(pattern, members, pairs, microbatches);
          Case of{.pattern = pattern, .members = members, .pairs = pairs};
          of.microbatches = microbatches;
          of.options.recompute = pattern == 13;
          std::array constexpr layer{1, 3, 4, 6};
          unsigned bit = 0;
          while ((pattern >> bit & 1U) == 0) ++bit;
          CHECK(apart(sg::host::Threads{1}, of, static_cast<std::size_t>(layer[bit]), &all_before) <
                1e-12);
        }
}

TEST_CASE("engine/each_pass: several groups add up their gradients in each pass", "[engine]") {
  for (int const members : {1, 2, 3})
    for (int const groups : {2, 3})
      for (int const microbatches : {1, 4}) {
        CAPTURE(members, groups, microbatches);
        Case of{.members = members, .groups = groups, .microbatches = microbatches};
        of.options.recompute = groups == 3;
        CHECK(apart(sg::host::Threads{1 + members}, of, 1, &all_before) < 1e-12);
        CHECK(apart(sg::sim::VirtualClock{.jitter = 0.3, .seed = 5}, of, 1, &all_before) < 1e-12);
      }
  Case of{.microbatches = 4, .schedule = made(sg::schedule::OneFOneB{})};
  of.cuts = {3};
  of.counts = {4, 2};  // two groups at the first position, one at the other
  CHECK(apart(sg::host::Threads{3}, of, 1,
              [](std::size_t layer, int m) { return layer < 3 ? std::max(0, m - 1) : m; }) < 1e-12);
  of.counts = {3, 4};
  of.cuts = {1};
  CHECK(apart(sg::host::Threads{2}, of, 1, &all_before) < 1e-12);
}

TEST_CASE("engine/each_pass: a microbatch sees the updates that the schedule has made before it",
          "[engine]") {
  Case of{.microbatches = 4, .schedule = made(sg::schedule::GPipe{})};
  of.options.recompute = true;
  CHECK(apart(sg::host::Threads{1}, of, 1, [](std::size_t, int) { return 0; }) < 1e-12);
  of.cuts = {3};  // the first of two positions is one microbatch ahead
  of.schedule = made(sg::schedule::OneFOneB{});
  auto const one_behind = [](std::size_t layer, int m) {
    return layer < 3 ? std::max(0, m - 1) : m;
  };
  CHECK(apart(sg::host::Threads{2}, of, 1, one_behind) < 1e-12);
  of.cuts = {1};  // what is shared is on the last of them
  of.counts = {3, 2};
  CHECK(apart(sg::host::Threads{1}, of, 1, &all_before) < 1e-12);
  of.members = 1;
  of.cuts = {3};
  of.counts = {};
  CHECK(apart(sg::host::Threads{1}, of, 1, one_behind) == 0);
}

TEST_CASE("engine/each_pass: differs from one update for each step by the square of the rate",
          "[engine]") {
  for (int const members : {1, 2, 4}) {
    Case const together{.members = members, .microbatches = 4};
    auto const apart_at = [&](double rate) {
      auto const a = after_step(together, rate);
      auto const b = after_step(each_pass(together), rate);
      REQUIRE(a.size() == b.size());
      std::size_t const first = inputs * 7 + 7;  // the layer in front
      double before = 0;
      double split = 0;
      for (std::size_t i = 0; i < a.size(); ++i)
        (i < first ? before : split) += (a[i] - b[i]) * (a[i] - b[i]);
      return std::pair{std::sqrt(before) / rate, std::sqrt(split)};  // gradients, weights
    };
    auto const [gradients, weights] = apart_at(0.02);
    auto const [half_gradients, half_weights] = apart_at(0.01);
    CAPTURE(members, gradients, half_gradients, weights, half_weights);
    CHECK(weights / half_weights > 3.5);
    CHECK(weights / half_weights < 4.5);
    CHECK(gradients / half_gradients > 1.75);
    CHECK(gradients / half_gradients < 2.25);
    Case const one_pass{.members = members, .microbatches = 1};
    CHECK(after_step(one_pass, 0.02) == after_step(each_pass(one_pass), 0.02));
  }
}

TEST_CASE("engine/each_pass: threads and virtual time give the same bits", "[engine]") {
  using namespace sg::schedule;
  using Positions = std::pair<std::vector<int>, std::vector<int>>;  // cuts, ranks
  int number = 0;
  for (Made const& schedule :
       {made(GPipe{}), made(OneFOneB{}), made(ZeroBubbleH1{}), made(Interleaved{})})
    for (auto const& [cuts, counts] :
         schedule.chunks() == 2
             ? std::vector<Positions>{{{1, 3, 5}, {2, 2}}}
             : std::vector<Positions>{
                   {{}, {2}}, {{}, {6}}, {{3}, {2, 4}}, {{1}, {3, 2}}, {{1, 3, 5}, {3, 2, 4, 2}}}) {
      Case of =
          each_pass({.microbatches = 4, .schedule = schedule, .cuts = cuts, .counts = counts});
      of.options.recompute = number % 3 == 1;
      of.pairs = number++ % 2 == 1;
      CAPTURE(number);
      auto train = pipeline<double>(sg::host::Threads{1}, of);
      auto threads = pipeline<double>(sg::host::Threads{3}, of);
      auto clock = pipeline<double>(sg::sim::VirtualClock{.jitter = 0.3, .seed = 5}, of);
      for (int step = 0; step < 2; ++step) {
        auto const data = batch<double>(step, of.microbatches, 17);
        double const loss = sg::run(train.step(data)).loss;
        CHECK(sg::run(threads.step(data)).loss == loss);
        CHECK(sg::run(clock.step(data)).loss == loss);
        CHECK(bits(train) == bits(threads));
        CHECK(bits(train) == bits(clock));
      }
    }
}

TEST_CASE("engine/each_pass: a step that fails after some updates leaves no trace", "[engine]") {
  Case const of = each_pass({.microbatches = 4});
  auto train = pipeline<double>(sg::host::Threads{1}, of);
  auto other = pipeline<double>(sg::host::Threads{1}, of);
  auto const good = batch<double>(0, 4, 17);
  sg::run(train.step(good));
  sg::run(other.step(good));
  auto const before = bits(train);
  auto wrong = batch<double>(1, 4, 17);
  wrong.inputs[2] = numbers<double>(17, inputs - 1, 3);
  CHECK_THROWS_WITH(sg::run(train.step(wrong)), "wrong inputs");
  CHECK(bits(train) == before);
  CHECK(train.steps() == 1);
  auto const next = batch<double>(1, 4, 17);
  CHECK(sg::run(train.step(next)).loss == sg::run(other.step(next)).loss);
  CHECK(bits(train) == bits(other));
}

TEST_CASE("engine/each_pass: an optimizer that counts its steps counts passes", "[engine]") {
  Case const of = each_pass({.members = 1, .microbatches = 3});
  auto const chain = [] { return sg::Pipeline{model<double>(15)}; };
  sg::optimizer::AdamW const adam{.rate = 0.01};
  auto train =
      chain().with(sg::partition::LayerSplit<>{.threshold = 0, .update = Update::each_pass},
                   sg::loss::MeanSquaredError<double>{}, adam);
  auto one = chain().on_one_device(sg::loss::MeanSquaredError<double>{}, adam);
  Sequential loop(one, 1, &all_before);
  for (int step = 0; step < 3; ++step) {
    auto const data = batch<double>(step, of.microbatches, 17);
    sg::run(train.step(data));
    loop.step(data, sg::loss::MeanSquaredError<double>{});
  }
  CHECK(difference<double>(train, one) == 0);
}

namespace {

/// The mean of values and states of several copies of a model, added up as a server does.
class Means {
 public:
  template <class One> explicit Means(One& one) {
    for (auto& layer : one.parts().parameters) base_.push_back(numbers_of(layer));
  }
  template <class One> void take(std::vector<One*> const& ones, std::vector<double> const& shares) {
    for (std::size_t l = 0; l < base_.size(); ++l) {
      std::vector<double> mean = base_[l];
      for (std::size_t n = 0; n < ones.size(); ++n) {
        auto const own = numbers_of(ones[n]->parts().parameters[l]);
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += shares[n] * (own[i] - base_[l][i]);
      }
      base_[l] = mean;
      for (One* const one : ones) {
        auto const* from = mean.data();
        for (auto const& block : one->parts().parameters[l].blocks()) {
          if (!block.empty()) std::memcpy(block.data(), from, block.size());
          from += block.size() / sizeof(double);
        }
      }
    }
  }

 private:
  template <class Layer> static std::vector<double> numbers_of(Layer& layer) {
    std::vector<double> numbers;
    for (auto const& block : layer.blocks()) {
      auto const* const first = reinterpret_cast<double const*>(block.data());
      numbers.insert(numbers.end(), first, first + block.size() / sizeof(double));
    }
    return numbers;
  }
  std::vector<std::vector<double>> base_;  // [layers] the last mean
};

}  // namespace

TEST_CASE("engine/each_pass: groups that are averaged do what the published loop does",
          "[engine]") {
  // Each group updates after each pass, and all continue from their mean after every few batches.
  std::vector<double> const shares{0.25, 0.75};
  auto const check = [&](Case const& of, int period, auto const& device_of, double tolerance) {
    CAPTURE(of.members, of.microbatches, of.cuts, of.counts, period);
    ParameterServer const server({.workers = 2, .weights = shares});
    LocalSgd const model{.period = period};
    auto a = pipeline<double>(device_of(0), each_pass(of), model, server.worker(0));
    auto b = pipeline<double>(device_of(1), each_pass(of), model, server.worker(1));
    auto one_a = one_device<double>(of);
    auto one_b = one_device<double>(of);
    Means means(one_a);
    Sequential loop_a(one_a, 1, &all_before);
    Sequential loop_b(one_b, 1, &all_before);
    for (int step = 0; step < 2 * period + 1; ++step) {
      auto const of_a = batch<double>(2 * step, of.microbatches, 17);
      auto const of_b = batch<double>(2 * step + 1, of.microbatches, 17);
      static_cast<void>(sg::run_together(a.step(of_a), b.step(of_b)));
      loop_a.step(of_a, sg::loss::MeanSquaredError<double>{});
      loop_b.step(of_b, sg::loss::MeanSquaredError<double>{});
      bool const met = (step + 1) % period == 0;
      if (met) means.take(std::vector{&one_a, &one_b}, shares);
      REQUIRE(difference<double>(a, one_a) <= tolerance);
      REQUIRE(difference<double>(b, one_b) <= tolerance);
      CHECK((bits(a) == bits(b)) == met);
    }
  };
  auto const threads = [](int n) { return sg::host::Threads{1 + 2 * n}; };
  sg::sim::VirtualClock clock{.jitter = 0.3, .seed = 5};
  clock.clock = sg::sim::Clock({.rate = 1e4});
  clock.costs = sg::schedule::Costs::uniform(1, 1, 1);
  for (int const period : {1, 4}) {
    check({.members = 1, .microbatches = 3}, period, threads, 0);
    check({.members = 1, .microbatches = 3, .counts = {1}}, period, [&](int) { return clock; }, 0);
    check({.members = 2, .microbatches = 4}, period, threads, 1e-12);
    check({.members = 2, .groups = 2, .microbatches = 4}, period, threads, 1e-12);
    check({.members = 3, .microbatches = 3, .cuts = {1}, .counts = {2, 3}}, period, threads, 1e-12);
    check(
        {.members = 2, .pairs = true, .microbatches = 2}, period, [&](int) { return clock; },
        1e-12);
  }
}

TEST_CASE("engine/each_pass: until its first exchange, a worker has the bits of a pipeline alone",
          "[engine]") {
  // Behind a step that fails it continues from the server's weights, as after the last mean.
  for (Case of : {Case{.microbatches = 4}, Case{.microbatches = 3, .cuts = {3}},
                  Case{.microbatches = 4, .cuts = {1}, .counts = {3, 2}}}) {
    of = each_pass(of);
    CAPTURE(of.cuts, of.counts);
    for (bool const average_state : {false, true}) {
      ParameterServer const server({.workers = 1});
      auto alone = pipeline<double>(sg::host::Threads{1}, of);
      auto worker = pipeline<double>(sg::host::Threads{3}, of, server.worker(0),
                                     LocalSgd{.period = 100, .average_state = average_state});
      auto const first = bits(alone);
      for (int step = 0; step < 3; ++step) {
        auto const data = batch<double>(step, of.microbatches, 17);
        CHECK(sg::run(worker.step(data)).loss == sg::run(alone.step(data)).loss);
        REQUIRE(bits(worker) == bits(alone));
      }
      auto wrong = batch<double>(3, of.microbatches, 17);
      wrong.inputs[2] = numbers<double>(17, inputs - 1, 3);
      CHECK_THROWS_WITH(sg::run(worker.step(wrong)), "wrong inputs");
      CHECK(worker.steps() == 3);
      if (average_state) {
        CHECK(bits(worker) == first);
      } else {  // the failed step has changed no state
        auto const states = worker.parameters();
        auto const expected = alone.parameters();
        for (std::size_t p = 0; p < states.size(); ++p)
          CHECK(std::equal(states[p].state[0].begin(), states[p].state[0].end(),
                           expected[p].state[0].begin()));
      }
    }
  }
}

TEST_CASE("engine/each_pass: a program that updates at another time is refused", "[engine]") {
  using sg::Op;
  auto const check = [](Made const& schedule, auto const&... server) {
    bool const exchanges = sizeof...(server) != 0;
    auto train =
        pipeline<double>(sg::host::Threads{1}, each_pass({.schedule = schedule}), server...);
    auto const& grouped = *train.machine().model.grouped;
    sg::Replicas const& replicas = train.machine().options().replicas;
    sg::LayOutOptions options;
    options.sections = &grouped.sections();
    options.connect_sections = grouped.connects();
    options.staleness = *grouped.updates;
    options.replicas = &replicas;
    sg::List<sg::GradientGroup> const* const groups =
        train.machine().gradient_groups()->groups(train.machine());
    options.groups = groups;
    options.shared = replicas.part()->passes();
    auto const table = grouped.table(schedule.table({.ranks = 1, .microbatches = 3}), replicas);
    sg::Program const good = sg::lay_out(table, options);
    REQUIRE_NOTHROW(sg::require_sound(good, table, options));
    auto const refused = [&](sg::Program const& program) {
      try {
        sg::require_sound(program, table, options);
      } catch (sg::Error const& error) {
        CHECK(error.code() == sg::Errc::bad_schedule);
        return true;
      }
      return false;
    };
    CHECK(good.flushes);
    int alone = 0;
    for (std::size_t c = 0; c < good.cells.size(); ++c) {
      CHECK(good.cells[c].alone == (good.cells[c].depth > 0));
      alone += good.cells[c].alone ? 1 : 0;
      sg::Program other = good;
      other.cells[c].alone = !good.cells[c].alone;
      CHECK(refused(other));
    }
    int applies = 0;
    int exchanged = 0;
    for (std::size_t r = 0; r < good.ranks.size(); ++r)
      for (std::size_t i = 0; i < good.ranks[r].code.size(); ++i) {
        auto const& code = good.ranks[r].code;
        CAPTURE(r, i, sg::detail::describe(code[i]));
        if (sg::exchanges(code[i].op)) {
          ++exchanged;
          sg::Program again = good;
          again.ranks[r].code.push_back(code[i]);
          again.ranks[r].code.back().waits = 0;
          CHECK(refused(again));
          if (code[i].op == Op::push) {
            sg::Program early = good;  // before the rank has updated
            std::rotate(early.ranks[r].code.begin(),
                        early.ranks[r].code.begin() + static_cast<std::ptrdiff_t>(i),
                        early.ranks[r].code.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            CHECK(refused(early));
            sg::Program none = good;
            none.ranks[r].code[i].op = Op::pass;
            CHECK(refused(none));
          }
        }
        if (code[i].op != Op::apply) continue;
        ++applies;
        sg::Program twice = good;
        twice.ranks[r].code.push_back(code[i]);
        CHECK(refused(twice));
        sg::Program early = good;  // before the backward whose gradients it needs
        std::swap(early.ranks[r].code[i], early.ranks[r].code[i - 1]);
        CHECK(refused(early));
        sg::Program elsewhere = good;
        elsewhere.ranks[r].code[i].next_version ^= 1U;
        CHECK(refused(elsewhere));
        sg::Program none = good;
        none.ranks[r].code[i].op = Op::pass;
        CHECK(refused(none));
      }
    CHECK(applies == 3 * alone);
    CHECK(exchanged == (exchanges ? 2 * (alone + 1) : 0));  // one of the two that hold the others
  };
  for (Made const& schedule : {made(sg::schedule::OneFOneB{}), made(sg::schedule::GPipe{})}) {
    check(schedule);
    ParameterServer const server({.workers = 1});
    check(schedule, server.worker(0), LocalSgd{.period = 2});
  }
}

TEST_CASE("engine/each_pass: what cannot be updated alone is refused in one sentence", "[engine]") {
  auto const says = [](Case const& of, auto const&... more) -> std::string {
    try {
      auto train = pipeline<double>(sg::host::Threads{1}, each_pass(of), more...);
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::bad_configuration);
      return error.what();
    }
    return "";
  };
  CHECK(says({.schedule = made(sg::schedule::Chimera{}), .cuts = {3}, .counts = {2, 2}}) ==
        "stage 0 is run at two positions of the schedule, each with a group, which see different "
        "microbatches and so cannot update it together in each pass; use a schedule with one "
        "position for each stage, or Update::accumulate");
  CHECK(says({.cuts = {1}, .counts = {4, 2}}).empty());
  CHECK(says({.options = {.clip_norm = 1.0}}) ==
        "layers that are updated in each pass cannot train with Options::clip_norm; leave it out, "
        "or use Update::accumulate");
  CHECK(says({}, sg::collective::AllReduce<>{.shard_optimizer = true})
            .find("AllReduce::shard_optimizer") != std::string::npos);
  ParameterServer const server({.workers = 2});
  CHECK(says({}, server.worker(0)) ==
        "layers that are updated in each pass have no gradient of a step for a parameter server; "
        "use staleness::LocalSgd, which averages weights, or Update::accumulate");
  CHECK(says({}, server.worker(0), LocalSgd{.period = 2}).empty());
}

}  // namespace each_pass_test
