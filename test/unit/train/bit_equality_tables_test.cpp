// SPDX-License-Identifier: Apache-2.0
#include <stagger/train/pipeline.hpp>

#include "catch.hpp"

#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/hanayo.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/looped_bfs.hpp>
#include <stagger/schedule/v_1f1b.hpp>
#include <stagger/schedule/v_half.hpp>
#include <stagger/schedule/v_min.hpp>
#include <stagger/schedule/zero_bubble_h1.hpp>
#include <stagger/schedule/zero_bubble_h2.hpp>
#include <stagger/schedule/zero_bubble_v.hpp>

#include "engine/random_table.hpp"
#include "engine/typed_oracle.hpp"

namespace bit_equality_tables_test {

using namespace small_model;

namespace {

constexpr int steps = sanitized ? 4 : 20;

struct Case {
  std::string name;
  Made schedule;
  int ranks;
  int microbatches;
};

std::vector<Case> cases() {
  using namespace sg::schedule;
  std::vector<Case> all;
  for (int const M : {4, 8}) {
    all.push_back({"interleaved", made(Interleaved{.chunks_per_rank = 3}), 2, M});
    all.push_back({"looped-bfs", made(LoopedBfs{.chunks_per_rank = 2}), 3, M});
    all.push_back({"looped-bfs, W late", split(made(LoopedBfs{.chunks_per_rank = 3}), 2), 2, M});
    all.push_back({"zb-h1", made(ZeroBubbleH1{}), 4, M});
    all.push_back({"zb-h1, 2 chunks", made(ZeroBubbleH1{.chunks_per_rank = 2}), 2, M});
    all.push_back({"zb-h2", made(ZeroBubbleH2{}), 3, M});
    all.push_back({"zb-v", made(ZeroBubbleV{}), 3, M});
    all.push_back({"v-min", made(VMin{}), 3, M});
    all.push_back({"v-half", made(VHalf{}), 2, M});
    all.push_back({"v-1f1b", made(V1F1B{}), 3, M});
    all.push_back({"hanayo", made(Hanayo{}), 2, M});
  }
  return all;
}

/// A schedule that is one table.
Made fixed(Table const& table) {
  return {[table](sg::Shape) { return table; }, table.stages / table.ranks()};
}

template <class Device>
void check(Device device, Table const& table, Made const& schedule, bool recompute, int run_steps) {
  std::vector<int> const cuts = even_cuts(table.stages);
  auto const data = batches(run_steps, table.microbatches, true);
  auto const course = expected_course(data, true, orders_of(table, first_layers(cuts)));
  sg::Options options;
  options.clip_norm = clip;
  options.recompute = recompute;
  auto train = pipeline(std::move(device), cuts, schedule, options);
  REQUIRE(first_difference(train, data, course) == -1);
}

}  // namespace

TEST_CASE(
    "train/Trainer: schedules with several chunks, late weights and falling order have the bits "
    "of loops in that order",
    "[train]") {
  for (auto const& [name, schedule, ranks, microbatches] : cases()) {
    CAPTURE(name, ranks, microbatches);
    auto const table = schedule.table({ranks, microbatches, schedule.each});
    REQUIRE(table.stages <= layers);
    for (bool const recompute : {false, true}) {
      CAPTURE(recompute);
      for (int const threads : {1, 2, 3})
        check(sg::host::Threads{threads}, table, schedule, recompute, steps);
      check(sg::sim::VirtualClock{.jitter = 0.3}, table, schedule, recompute, steps);
    }
  }
}

TEST_CASE(
    "train/Trainer: random legal tables have the bits of loops in the order that the table states",
    "[train]") {
  random_table::Random random(7);
  int const count = sanitized ? 60 : 1500;
  int ran = 0;
  while (ran < count) {
    Table const table = random_table::any(random, 3, 6);
    if (table.stages % table.ranks() != 0 || table.stages > layers) continue;
    ++ran;
    CAPTURE(ran, table.ranks(), table.stages, table.microbatches);
    bool const recompute = ran % 2 == 0;
    if (ran % 5 == 0)
      check(sg::sim::VirtualClock{.jitter = 0.3}, table, fixed(table), recompute, 3);
    else
      check(sg::host::Threads{1 + ran % 3}, table, fixed(table), recompute, 3);
  }
}

TEST_CASE("train/Trainer: a table in falling order really adds in another order", "[train]") {
  // Else the test above could not tell the orders apart.
  auto const table = sg::schedule::LoopedBfs{.chunks_per_rank = 2}.table({2, 8, 2});
  auto const data = batches(3, 8, true);
  auto const cuts = even_cuts(4);
  CHECK(expected_course(data, true, orders_of(table, first_layers(cuts))).bits.back() !=
        expected_course(data, true).bits.back());
}

namespace {

/// A layer with parameters whose whole backward is the only one that adds to their gradients.
struct HalfSplit {
  using Input = Matrix;
  using Output = Matrix;
  sg::Parameter<> gain{"gain", std::vector<float>(width, 0.5F)};
  auto parameters() { return std::tie(gain); }
  void forward(sg::Context& context, Matrix const& x, Matrix& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * context[gain][i % width];
  }
  void backward_input(sg::Context& context, Matrix const& x, Matrix const& dy, Matrix& dx,
                      sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) dx[i] = dy[i] * context[gain][i % width];
  }
  void backward(sg::Context& context, Matrix const& x, Matrix const& dy, Matrix& dx,
                sg::NothingSaved& saved) {
    backward_input(context, x, dy, dx, saved);
    for (std::size_t i = 0; i < x.size(); ++i) context.gradient(gain)[i % width] += dy[i] * x[i];
  }
};

}  // namespace

TEST_CASE("train/Trainer: a backward that is whole but for one half is run whole", "[train]") {
  sg::Pipeline model{Embedding{}, HalfSplit{}, Dense{}};
  auto one = model.on_one_device(Loss{}, optimizer());
  auto train = model.with(split(made(sg::schedule::OneFOneB{}), 1), Loss{}, optimizer());
  for (auto const& data : batches(5, 4, true)) {
    one.step(data);
    sg::run(train.step(data));
    REQUIRE(bits(train) == bits(one));
  }
}

}  // namespace bit_equality_tables_test
