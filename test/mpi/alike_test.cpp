// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/core/stop_token.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"
#include "trap_model.hpp"
#include "world.hpp"

namespace alike_test {

// A step is one thing in all processes: what one of them cannot begin, or begins differently, fails
// in all at once, and the next one is as if that had never been asked for. Nobody waits for a
// deadline: it is longer than the test may take.

namespace {

using namespace trap_model;

/// A target of 13 is more than memory can hold.
struct Unlucky : Sum {
  double terms(float const& target) const {
    if (target == 13) throw std::bad_alloc();
    return 1;
  }
};

/// Takes even numbers of microbatches.
struct Pairs : sg::schedule::OneFOneB {
  static constexpr bool proven = true;
  sg::schedule::Table table(sg::Shape shape) const {
    if (shape.microbatches % 2 != 0)
      sg::raise(sg::Errc::bad_schedule, shape.microbatches, " microbatches are no pairs");
    return OneFOneB::table(shape);
  }
};

auto model() {
  std::vector<Scale> layers;
  for (int l = 0; l < processes(); ++l) layers.push_back(Scale{.layer = l});
  return sg::Pipeline{std::move(layers)};
}
auto over_processes() {
  return model().with(Unlucky{}, Pairs{}, sg::optimizer::AdamW{.rate = 0.01},
                      sg::mpi::Processes{.join_deadline_s = 600}, sg::Options{.deadline_s = 600});
}
using Train = decltype(over_processes());

using Batch = sg::Batch<Numbers, float>;
/// No two alike.
Batch batch(int number, int microbatches = 4) {
  Batch batch;
  for (int m = 0; m < microbatches; ++m) {
    float const x = 0.1F * static_cast<float>(7 * number + m + 1);
    batch.inputs.push_back({x, -x});
    batch.targets.push_back(0.5F - x);
  }
  return batch;
}

/// What one process does instead of taking step `number` as the others do, and undoes.
struct Fault {
  char const* reason;    // words of the sentence that all get
  char const* at_first;  // likewise where all lay out their first program; null: the same
  bool alone;            // one process without others sees it too
  void (*take)(Train& train, int number);
  void (*mend)(Train& train) = [](Train&) {};
};

Fault const faults[] = {
    {"4 inputs need as many targets, not 3", nullptr, true,
     [](Train& train, int number) {
       auto bad = batch(number);
       bad.targets.pop_back();
       sg::run(train.step(bad));
     }},
    {"bad_alloc", nullptr, true,
     [](Train& train, int number) {
       auto bad = batch(number);
       bad.targets[2] = 13;
       sg::run(train.step(bad));
     }},
    {"3 microbatches are no pairs", nullptr, true,
     [](Train& train, int number) { sg::run(train.step(batch(number, 3))); }},
    {"a minibatch of 0 microbatches", nullptr, true,
     [](Train& train, int) { sg::run(train.step(Batch{})); }},
    {"the step was cancelled", nullptr, true,
     [](Train& train, int number) {
       stagger::stop_source stop;
       stop.request_stop();
       sg::run(train.step(batch(number), stop.get_token()));
     }},
    {"from step 1000", nullptr, false,
     [](Train& train, int number) {
       train.resume(train.steps() + 1000);
       sg::run(train.step(batch(number)));
     },
     [](Train& train) { train.resume(train.steps() - 1000); }},
    {"from step 1000", nullptr, false,  // and with a program that it has to load
     [](Train& train, int number) {
       train.resume(train.steps() + 1000);
       sg::run(train.step(batch(number, 2)));
     },
     [](Train& train) { train.resume(train.steps() - 1000); }},
    {"different numbers in the optimizer", nullptr, false,
     [](Train& train, int number) {
       train.optimizer().rate *= 2;
       sg::run(train.step(batch(number)));
     },
     [](Train& train) { train.optimizer().rate /= 2; }},
    {"are given different inputs for a training step of 4", nullptr, false,
     [](Train& train, int number) {
       auto other = batch(number);
       other.inputs[3][1] += 1;
       sg::run(train.step(other));
     }},
    {"are given different targets for", nullptr, false,
     [](Train& train, int number) {
       auto other = batch(number);
       std::swap(other.targets[1], other.targets[2]);
       sg::run(train.step(other));
     }},
    {"are given different inputs and targets for", nullptr, false,
     [](Train& train, int number) { sg::run(train.step(batch(number + 1))); }},
    {"microbatches, process", "the number of microbatches", false,
     [](Train& train, int number) { sg::run(train.step(batch(number, 2))); }},
    {"microbatches, process", "what the step does", false,
     [](Train& train, int number) { sg::run(train.evaluate(batch(number))); }},
    {"microbatches, process", "the number of microbatches", false,
     [](Train& train, int) { train.prepare(2); }},
    {"microbatches, process", "what is asked for", false,
     [](Train& train, int) { train.prepare(4); }},
};

std::string sentence_of(std::function<void()> const& take) {
  try {
    take();
  } catch (std::exception const& e) {
    return e.what();
  }
  return "no error";
}

bool same(Train& train, std::vector<sg::ParameterState> const& wanted) {
  train.gather_parameters();
  auto const all = train.parameters();
  bool same = all.size() == wanted.size();
  for (std::size_t i = 0; same && i < all.size(); ++i)
    same = std::ranges::equal(all[i].value, wanted[i].value) &&
           std::ranges::equal(all[i].state[0], wanted[i].state[0]) &&
           std::ranges::equal(all[i].state[1], wanted[i].state[1]);
  return same;
}

bool has(std::string const& words, std::string const& part) {
  return words.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("mpi/Processes: a step that one process cannot begin alike was never asked for",
          "[mpi]") {
  int turn = 0;
  for (auto const& fault : faults) {
    turn += 2;  // so that it is not always the same process
    for (int const at : {0, 1, 5}) {
      if (processes() == 1 && !fault.alone) continue;
      int const odd = turn++ % processes();
      INFO(fault.reason << ", step " << at << ", in process " << odd);
      auto train = over_processes();
      auto alone = model().on_one_device(Sum{}, sg::optimizer::AdamW{.rate = 0.01});
      int number = 0;
      for (; number < at; ++number) {
        sg::run(train.step(batch(number)));
        alone.step(batch(number));
      }
      auto const got = sentence_of([&] {
        if (process() == odd)
          fault.take(train, 100);
        else
          sg::run(train.step(batch(100)));
      });
      if (process() == odd) fault.mend(train);
      CAPTURE(got);
      std::string reason = fault.reason;
      if (reason == "from step 1000") reason = "from step " + std::to_string(1000 + at);
      REQUIRE(has(got, at == 0 && fault.at_first != nullptr ? fault.at_first : reason));
      std::string const name = std::to_string(odd);
      if (process() != odd || !fault.alone)
        REQUIRE((has(got, "process " + name) || has(got, "processes " + name + " and") ||
                 has(got, "and " + name + " take") || has(got, "and " + name + " are") ||
                 has(got, "rank " + name)));
      REQUIRE(train.steps() == at);
      for (int more = 0; more < 10; ++more, ++number) {
        sg::run(train.step(batch(number)));
        alone.step(batch(number));
      }
      REQUIRE(train.steps() == at + 10);
      REQUIRE(same(train, alone.parameters()));
    }
  }
}

namespace {

/// Bytes between its members may be anything.
struct WarmsUp : sg::optimizer::Sgd {
  int steps = 10;
};

}  // namespace

TEST_CASE("mpi/Processes: an optimizer that cannot be compared is refused", "[mpi]") {
  auto train = model().with(Sum{}, WarmsUp{}, sg::mpi::Processes{});
  auto const got = sentence_of([&] { sg::run(train.step(batch(0))); });
  INFO(got);
  REQUIRE((processes() == 1 ? got == "no error" : has(got, "auto fields() const")));
  REQUIRE_NOTHROW(sg::run(train.evaluate(batch(0))));
}

TEST_CASE("mpi/Processes: a loss in one process and outputs in another are no pair", "[mpi]") {
  if (processes() == 1) return;
  auto train = over_processes();
  auto const data = batch(1);
  std::vector<Numbers> outputs(data.inputs.size());
  double const loss = sg::run(train.evaluate(data)).loss;
  for (int const odd : {0, processes() - 1}) {
    auto const got = sentence_of([&] {
      if (process() == odd)
        sg::run(train.predict(data.inputs, outputs));
      else
        sg::run(train.evaluate(data));
    });
    INFO(got);
    REQUIRE(has(got, "process " + std::to_string(odd) + " for outputs"));
    REQUIRE(has(got, " is asked for a loss"));
    REQUIRE(sg::run(train.evaluate(data)).loss == loss);
    sg::run(train.predict(data.inputs, outputs));
  }
}

namespace {

/// A value that one process cannot send on.
struct Stubborn {
  std::vector<float> values{};
  static inline bool refuses = false;
};
struct Wrap {
  using Input = Numbers;
  using Output = Stubborn;
  void forward(sg::Context&, Numbers const& x, Stubborn& y, sg::NothingSaved&) { y.values = x; }
  void backward_input(sg::Context&, Numbers const&, Stubborn const&, Numbers&, sg::NothingSaved&) {}
};

}  // namespace

}  // namespace alike_test

template <> struct stagger::Portable<alike_test::Stubborn> {
  static constexpr bool exists = true;
  static void write(ByteWriter& out, alike_test::Stubborn const& value) {
    if (alike_test::Stubborn::refuses) throw std::runtime_error("no way to write it");
    Portable<std::vector<float>>::write(out, value.values);
  }
  static void read(ByteReader& in, alike_test::Stubborn& value) {
    Portable<std::vector<float>>::read(in, value.values);
  }
};

namespace alike_test {

TEST_CASE("mpi/Processes: what cannot be sent when all else is done ends the step at once",
          "[mpi]") {
  std::vector<Scale> layers;
  for (int l = 0; l + 1 < processes(); ++l) layers.push_back(Scale{.layer = l});
  int const last = processes() - 1;
  auto train = sg::Pipeline{std::move(layers), Wrap{}}.with(sg::mpi::Processes{},
                                                            sg::Options{.deadline_s = 600});
  if (last == 0) return;
  std::vector<Numbers> const inputs{{1, 2}, {3}};
  std::vector<Stubborn> outputs(2);
  sg::run(train.predict(inputs, outputs));
  Stubborn::refuses = process() == last;
  auto const got = sentence_of([&] { sg::run(train.predict(inputs, outputs)); });
  Stubborn::refuses = false;
  INFO(got);
  REQUIRE(has(got, "no way to write it"));
  if (process() != last) REQUIRE(has(got, "process " + std::to_string(last) + " ended the step"));
  sg::run(train.predict(inputs, outputs));
}

TEST_CASE("mpi/Processes: replicas that share the optimizer's state out fail and go on alike",
          "[mpi]") {
  if (processes() == 1) return;
  using namespace trap_model;
  sg::Options options{.deadline_s = 600};
  options.clip_norm = 0.5;
  options.replicas = {processes()};
  auto const made = [&](auto device) {
    return wide_stage().with(sg::partition::Cuts{}, RowSum{}, device, sg::optimizer::AdamW{},
                             options,
                             sg::collective::AllReduce<sg::collective::grouping::Layerwise>{
                                 .shard_optimizer = true, .measured_steps = 2});
  };
  auto const rows = [](int number) {
    auto const x = [&](int i) { return 0.01F * static_cast<float>(i + number); };
    return sg::Batch<Numbers, Numbers>{{{x(1), x(2), x(3), x(4)}, {x(5), x(6), x(7), x(8)}},
                                       {{1, 2, 3, 4}, {4, 5, 6, 7}}};
  };
  auto train = made(sg::mpi::Processes{});
  auto alone = made(sg::host::Threads{1});
  int number = 0;
  for (int const steps : {0, 1, 1, 3, 2}) {
    for (int step = 0; step < steps; ++step, ++number) {
      sg::run(train.step(rows(number)));
      sg::run(alone.step(rows(number)));
    }
    for (bool const refuses : {true, false}) {
      bool const odd = process() == (number + 1) % processes();
      auto batch = rows(100);
      if (odd && refuses) batch.targets.pop_back();
      if (odd && !refuses) train.optimizer().rate *= 2;
      auto const got = sentence_of([&] { sg::run(train.step(batch)); });
      if (odd && !refuses) train.optimizer().rate /= 2;
      INFO(got);
      REQUIRE(has(got, refuses ? "2 inputs need as many targets, not 1"
                               : "different numbers in the optimizer"));
    }
  }
  sg::run(train.step(rows(number)));
  sg::run(alone.step(rows(number)));
  train.gather_parameters();
  auto const a = train.parameters();
  auto const b = alone.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(std::ranges::equal(a[i].value, b[i].value));
    for (std::size_t s = 0; s < 2; ++s) REQUIRE(std::ranges::equal(a[i].state[s], b[i].state[s]));
  }
  REQUIRE(train.steps() == alone.steps());
}

TEST_CASE("mpi/Processes: a step that was asked for and not taken pairs no others", "[mpi]") {
  if (processes() == 1) return;
  bool const odd = process() == 0;
  auto const data = batch(0);
  auto other = batch(1);
  if (odd) other.targets.pop_back();
  for (bool const drops : {false, true}) {
    auto train = over_processes();
    auto alone = model().on_one_device(Sum{}, sg::optimizer::AdamW{.rate = 0.01});
    if (drops) {
      auto step = train.step(data);
      if (!odd)
        CHECK(has(sentence_of([&] { sg::run(std::move(step)); }), "process 0 for something else"));
    } else {  // the second one is refused in process 0, so that the first one is the last there
      auto first = train.step(data);
      auto const refused = sentence_of([&] {
        auto second = train.step(other);
        CHECK(has(sentence_of([&] { sg::run(std::move(first)); }), "asked for before another"));
        sg::run(std::move(second));
      });
      CHECK(has(refused, "4 inputs need as many targets, not 3"));
      if (odd)
        CHECK(has(sentence_of([&] { sg::run(std::move(first)); }), "asked for before another"));
    }
    for (int number = 2; number < 5; ++number) {
      sg::run(train.step(batch(number)));
      alone.step(batch(number));
    }
    REQUIRE(train.steps() == 3);
    REQUIRE(same(train, alone.parameters()));
  }
}

TEST_CASE("mpi/Processes: after a deadline the others wait no longer than another one", "[mpi]") {
  if (processes() != 2) return;
  auto train =
      model().with(Sum{}, sg::mpi::Processes{.join_deadline_s = 600}, sg::Options{.deadline_s = 2});
  sg::run(train.step(batch(0)));
  if (process() == 0) {  // takes neither of the next two steps
    MPI_Barrier(MPI_COMM_WORLD);
    REQUIRE(has(sentence_of([&] { sg::run(train.step(batch(1))); }), "process 0"));
    REQUIRE(has(sentence_of([&] { sg::run(train.step(batch(2))); }), "process 0"));
  } else {
    REQUIRE(has(sentence_of([&] { sg::run(train.step(batch(1))); }), "no rank moved for 2 s"));
    auto const got = sentence_of([&] { sg::run(train.step(batch(2))); });
    INFO(got);
    REQUIRE(has(got, "process 0 has not asked for a training step of 4 microbatches within 2 s"));
    MPI_Barrier(MPI_COMM_WORLD);
  }
  sg::run(train.step(batch(3)));
  REQUIRE(train.steps() == 2);
}

}  // namespace alike_test
