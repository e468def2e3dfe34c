// SPDX-License-Identifier: Apache-2.0
// A schedule policy of your own: proven by the compiler, then trained with.
//
// Wave{w} is GPipe in waves: w forward passes, then their backward passes, then the next wave. No
// rank has more than w microbatches in flight.
//
//     rank 0 | F0 F1 .. .. B0 B1 F2 F3 .. .. B2 B3 |      (w = 2; B takes as long as F)
//     rank 1 | .. F0 F1 B0 B1 .. .. F2 F3 B2 B3 .. |
//
// Build:  g++ -std=c++20 -O2 -I include examples/03_own_schedule.cpp -pthread -o own
// Prints: the picture above, the peak in flight, and "loss 14.06 -> 0.000000"
// expect: rank 1 . \.\. F0 F1 B0 B1 \.\. \.\. F2 F3 B2 B3 \.\.
// expect: in flight at most 2 on rank 0, 2 on rank 1
// expect: loss 14\.06 -> 0\.000
#include <algorithm>
#include <cstdio>
#include <tuple>
#include <vector>

#include <stagger/report/text.hpp>
#include <stagger/schedule/proof/evaluate.hpp>
#include <stagger/schedule/proof/verify.hpp>
#include <stagger/stagger.hpp>
namespace sg = stagger;
namespace schedule = stagger::schedule;

struct Wave {
  using policy_tag = sg::ScheduleTag;
  static constexpr bool flushes = true;  // every rank is idle when an iteration ends
  int width = 2;

  constexpr int chunks() const { return 1; }  // stages on each rank
  constexpr schedule::Table table(sg::Shape shape) const {
    schedule::Table table{.stages = shape.stages(), .microbatches = shape.microbatches};
    for (int rank = 0; rank < shape.ranks; ++rank) {
      table.begin_row();
      for (int first = 0; first < shape.microbatches; first += width)
        for (auto const kind : {schedule::Kind::forward, schedule::Kind::backward})
          for (int m = first; m < std::min(first + width, shape.microbatches); ++m)
            table.add({.kind = kind, .stage = rank, .microbatch = m});
    }
    return table;
  }
};

static_assert(schedule::accepted<schedule::verify(Wave{.width = 2}, {.ranks = 2, .microbatches = 4},
                                                  {.in_flight = 2})>);

struct Scale {  // y = a x
  using Input = sg::Tensor<>;
  using Output = sg::Tensor<>;
  sg::Parameter<> a{"a", {1.5F}};

  void forward(sg::Context& c, Input const& x, Output& y, sg::NothingSaved&) {
    y.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = c[a][0] * x[i];
  }
  void backward(sg::Context& c, Input const& x, Output const& dy, Input& dx, sg::NothingSaved&) {
    dx.resize_like(x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = dy[i] * c[a][0];
      c.gradient(a)[0] += dy[i] * x[i];
    }
  }
  auto parameters() { return std::tie(a); }
};

int main() {
  auto train = sg::Pipeline{Scale{}, Scale{}}.with(
      Wave{.width = 2}, sg::loss::MeanSquaredError<>{}, sg::optimizer::Sgd{.rate = 0.02},
      sg::Options{.record = true});  // measure each action, count microbatches in flight

  sg::Batch<sg::Tensor<>, sg::Tensor<>> batch;  // 4 microbatches; 1 is to map to 6
  sg::Tensor<> one{1}, six{1};
  one.fill(1);
  six.fill(6);
  batch.inputs.assign(4, one);
  batch.targets.assign(4, six);

  auto const table = Wave{.width = 2}.table({.ranks = 2, .microbatches = 4});
  auto const costs = schedule::Costs::uniform(1, 0.5, 0.5);
  std::printf("%s", sg::report::gantt(schedule::evaluate(table, costs).timeline).c_str());

  double const before = sg::run(train.step(batch)).loss;
  double after = 0;
  for (int step = 0; step < 20; ++step) after = sg::run(train.step(batch)).loss;
  auto const peak = train.peak_in_flight();  // as the engine counted it
  std::printf("in flight at most %d on rank 0, %d on rank 1\nloss %.2f -> %.6f\n", peak[0], peak[1],
              before, after);
}
