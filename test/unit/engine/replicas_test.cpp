// SPDX-License-Identifier: Apache-2.0
#include <stagger/engine/replicas.hpp>

#include "catch.hpp"

#include <functional>
#include <stdexcept>
#include <string>

#include <stagger/program/lay_out.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>
#include <stagger/schedule/v_1f1b.hpp>

#include "row_oracle.hpp"

namespace replicas_test {

using row_model::Weights;
using namespace small_model;

namespace {

constexpr int steps = sanitized ? 4 : 20;

struct Shares {
  sg::Replicas replicas;
  Weights weights;
  std::size_t least = 4;  // rows
};

Shares even(std::vector<int> const& counts) {
  Shares shares{sg::Replicas::even(counts.data(), counts.size()), {}};
  for (int const count : counts)
    shares.weights.emplace_back(static_cast<std::size_t>(count), std::size_t{1});
  return shares;
}

Shares weighed() {
  return {{{15, 1}, {1}, {2, 1, 1}, {1, 15}}, {{15, 1}, {1}, {2, 1, 1}, {1, 15}}, 16};
}

std::vector<Batch> batches(int count, int microbatches, Shares const& shares, bool uneven) {
  std::vector<Batch> result;
  for (int s = 0; s < count; ++s)
    result.push_back(row_model::batch(s, microbatches, shares.least, uneven));
  return result;
}

/// Runs one case on threads and under the virtual clock. @return the first step that differs, or -1
template <class Device>
int difference(Device device, Made const& schedule, int positions, int microbatches,
               Shares const& shares, bool uneven, sg::Options options, int run_steps = steps) {
  int const stages = positions * schedule.each;
  auto const cuts = even_cuts(stages);
  auto const data = batches(run_steps, microbatches, shares, uneven);
  auto const table =
      schedule.table({.ranks = positions, .microbatches = microbatches, .chunks = schedule.each});
  auto const course = row_model::expected_course(
      data, options.clip_norm.has_value(), orders_of(table, first_layers(cuts)), shares.weights);
  options.replicas = shares.replicas;
  auto train = row_model::pipeline(device, cuts, schedule, options);
  return first_difference(train, data, course);
}

template <class Body> void grid(Body body) {
  using namespace sg::schedule;
  std::vector<Shares> const all{even({1, 2, 1, 1}), even({1, 2, 2, 1}), even({1, 3, 2, 1}),
                                even({1, 2, 3, 1}), even({1, 1, 4, 1}), even({2, 2, 2, 2}),
                                even({4, 1, 3, 2}), weighed()};
  unsigned number = 0;
  for (std::size_t s = 0; s < all.size(); ++s)
    for (int const microbatches : {1, 3, 5})
      for (bool const uneven : {false, true})
        for (Made const& schedule : {made(GPipe{}), made(OneFOneB{}), split(made(OneFOneB{}), 2)}) {
          sg::Options options;
          options.recompute = number % 2 == 1;
          if (number % 5 != 0) options.clip_norm = clip;
          options.spare_slots = number % 7 == 0 ? 0 : 1;
          CAPTURE(s, microbatches, uneven, number, options.recompute);
          if (++number % (sanitized ? 7 : 1) == 0)
            body(schedule, all[s], microbatches, uneven, options, number);
        }
}

}  // namespace

TEST_CASE("engine/Replicas: on threads, parameters have the bits of typed loops over the rows",
          "[engine]") {
  grid([](Made const& schedule, Shares const& shares, int microbatches, bool uneven,
          sg::Options const& options, unsigned number) {
    int const threads = std::array{1, 2, 4}[number % 3];
    CAPTURE(threads);
    REQUIRE(difference(sg::host::Threads{threads}, schedule, 4, microbatches, shares, uneven,
                       options) == -1);
  });
}

TEST_CASE("engine/Replicas: under the virtual clock, parameters have the bits of typed loops",
          "[engine]") {
  grid([](Made const& schedule, Shares const& shares, int microbatches, bool uneven,
          sg::Options const& options, unsigned) {
    REQUIRE(difference(sg::sim::VirtualClock{.jitter = 0.5, .seed = 3}, schedule, 4, microbatches,
                       shares, uneven, options, 5) == -1);
  });
}

TEST_CASE("engine/Replicas: several stages on a rank, and several owners of a stage", "[engine]") {
  using namespace sg::schedule;
  for (int const threads : {1, 2, 4})
    for (bool const recompute : {false, true}) {
      CAPTURE(threads, recompute);
      sg::Options options;
      options.recompute = recompute;
      options.clip_norm = clip;
      sg::host::Threads const device{threads};
      CHECK(difference(device, made(Interleaved{}), 2, 4, even({1, 2}), true, options) == -1);
      CHECK(difference(device, made(Interleaved{}), 3, 6, even({3, 2, 4}), true, options) == -1);
      CHECK(difference(device, made(V1F1B{}), 2, 3, even({3, 2}), true, options) == -1);
      CHECK(difference(device, made(V1F1B{}), 3, 5, even({2, 1, 3}), false, options) == -1);
      CHECK(difference(device, made(Chimera{}), 2, 4, even({1, 2}), true, options) == -1);
      CHECK(difference(device, made(Chimera{}), 4, 8, even({2, 3, 1, 2}), true, options) == -1);
    }
}

TEST_CASE("engine/Replicas: the loss of fewer microbatches has nothing of the step before",
          "[engine]") {
  auto const many = row_model::batch(1, 4, 4, true);
  auto const few = row_model::batch(2, 2, 4, true);
  for (auto const& counts : {std::vector{2, 1}, std::vector{1, 2}, std::vector{3, 2}}) {
    auto const evaluated = [&](bool after_many) {
      sg::Options options;
      options.replicas = even(counts).replicas;
      auto train = row_model::pipeline(sg::host::Threads{1}, even_cuts(2),
                                       made(sg::schedule::GPipe{}), options);
      if (after_many) sg::run(train.evaluate(many));
      return sg::run(train.evaluate(few)).loss;
    };
    CAPTURE(counts);
    CHECK(evaluated(true) == evaluated(false));
  }
}

TEST_CASE("engine/Replicas: predictions are those of one device, and evaluation adds up the rows",
          "[engine]") {
  for (auto const& counts : {std::vector{1, 2, 3, 1}, std::vector{2, 1, 1, 3}}) {
    auto const shares = even(counts);
    auto const data = row_model::batch(1, 3, 4, true);
    sg::Options options;
    auto plain = row_model::pipeline(sg::host::Threads{1}, even_cuts(4),
                                     made(sg::schedule::OneFOneB{}), options);
    options.replicas = shares.replicas;
    auto train = row_model::pipeline(sg::host::Threads{2}, even_cuts(4),
                                     made(sg::schedule::OneFOneB{}), options);
    CHECK(train.ranks() == 7);
    std::vector<Matrix> expected(3);
    std::vector<Matrix> outputs(3);
    sg::run(plain.predict(data.inputs, expected));
    for (int again = 0; again < 2; ++again) sg::run(train.predict(data.inputs, outputs));
    sg::Context context;
    double sum = 0;
    double terms = 0;
    for (std::size_t m = 0; m < 3; ++m) {
      REQUIRE(outputs[m].extents() == expected[m].extents());
      CHECK(std::equal(outputs[m].begin(), outputs[m].end(), expected[m].begin()));
      auto const& weights = shares.weights[3];
      std::size_t const rows = data.inputs[m].extent(0);
      for (std::size_t k = 0; k < weights.size(); ++k) {
        std::size_t const first = row_model::border(weights, rows, k);
        std::size_t const last = row_model::border(weights, rows, k + 1);
        sum += Loss{}.value(context, row_model::cut(expected[m], rows, first, last),
                            row_model::cut(data.targets[m], rows, first, last));
      }
      terms += static_cast<double>(data.targets[m].size());
    }
    CHECK(sg::run(train.evaluate(data)).loss == sum / terms);
  }
}

TEST_CASE("engine/Replicas: what does not fit is refused in one sentence, and nothing changes",
          "[engine]") {
  auto const says = [](sg::Replicas const& replicas, int rows) -> std::string {
    try {
      sg::Options options;
      options.replicas = replicas;
      auto train = row_model::pipeline(sg::host::Threads{1}, even_cuts(4),
                                       made(sg::schedule::OneFOneB{}), options);
      auto const before = bits(train);
      try {
        sg::run(train.step(row_model::batch(0, 2, static_cast<std::size_t>(rows), false)));
      } catch (...) {
        CHECK(bits(train) == before);
        CHECK(train.steps() == 0);
        throw;
      }
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::bad_configuration);
      return error.what();
    }
    return "";
  };
  CHECK(says({1, 2, 2, 1}, 2).empty());
  CHECK(says({1, 2, 1}, 2) ==
        "3 counts of replicas do not fit 4 positions of the schedule; give one for each");
  CHECK(says({1, 0, 2, 1}, 2) == "position 1 of the schedule has 0 replicas; give it at least 1");
  CHECK(says({{1}, {2, -1}, {1, 1}, {1}}, 2).find("the share of replica 1 of position 1 is -1") ==
        0);
  CHECK(says({1, 3, 2, 1}, 2) ==
        "microbatch 0 has 2 rows, of which replica 0 of the 3 of position 1 would get none; give "
        "each microbatch at least 3 rows, or the position fewer replicas");
  CHECK(says({{1}, {1, 15}, {1, 1}, {1}}, 15).find("at least 16 rows") != std::string::npos);

  sg::Options options;
  options.seed = run_seed;
  options.replicas = {1, 2, 1};
  CHECK_THROWS_WITH(sg::Pipeline{small_model::model()}.with(
                        sg::partition::Cuts{{4, 5}}, made(sg::schedule::OneFOneB{}), Loss{},
                        optimizer(), sg::host::Threads{1}, options),
                    Catch::Contains("the input of layer 4 cannot be split by rows"));
}

namespace {

/// Throws, or cancels, at one call.
struct Trap {
  using Input = Matrix;
  using Output = Matrix;
  std::function<void(sg::Context&, bool backward)>* hook;
  void forward(sg::Context& context, Matrix const& x, Matrix& y, sg::NothingSaved&) {
    y = x;
    (*hook)(context, false);
  }
  void backward_input(sg::Context& context, Matrix const&, Matrix const& dy, Matrix& dx,
                      sg::NothingSaved&) {
    dx = dy;
    (*hook)(context, true);
  }
};

}  // namespace

TEST_CASE(
    "engine/Replicas: values of which replicas have different multiples of the rows are refused",
    "[engine]") {
  struct Stretch {
    using Input = Matrix;
    using Output = Matrix;
    void forward(sg::Context& context, Matrix const& x, Matrix& y, sg::NothingSaved&) {
      y.resize({x.extent(0) * (context.first_row() == 0 ? 1 : 2), width});
      y.fill(1);
    }
    void backward_input(sg::Context&, Matrix const& x, Matrix const&, Matrix& dx,
                        sg::NothingSaved&) {
      dx.resize_like(x);
      dx.fill(0);
    }
  };
  sg::Options options;
  options.replicas = {1, 2, 1};
  auto train = sg::Pipeline{Embedding{}, Stretch{}, Dense{}}.with(
      sg::host::Threads{1}, made(sg::schedule::OneFOneB{}), Loss{}, optimizer(), options);
  auto const before = bits(train);
  auto const data = row_model::batch(0, 2, 4, false);
  try {
    sg::run(train.step(data));
    FAIL("one replica has twice the rows of the other");
  } catch (sg::Error const& error) {
    CHECK(error.code() == sg::Errc::mismatch);
    CHECK_THAT(error.what(), Catch::Contains("a value of 8 rows belongs to 2 rows"));
  }
  CHECK(bits(train) == before);
}

TEST_CASE("engine/Replicas: replicas exchange rows with those whose rows they have, and no others",
          "[engine]") {
  // By hand: of 2 and 4 even shares, each half is two quarters; of 2 and 3, the middle third is in
  // both halves; alike, each has one partner and no edge is split.
  auto const row_edges = [](int before, int after) {
    sg::Options options;
    options.replicas = {before, after};
    auto train = row_model::pipeline(sg::host::Threads{1}, even_cuts(2),
                                     made(sg::schedule::GPipe{}), options);
    return train.program(2).row_edges.size();
  };
  CHECK(row_edges(2, 4) == 4);
  CHECK(row_edges(4, 2) == 4);
  CHECK(row_edges(2, 3) == 4);
  CHECK(row_edges(3, 3) == 0);
  CHECK(row_edges(1, 4) == 4);
}

TEST_CASE(
    "engine/Replicas: after an exception or a cancellation the next step is as if there had "
    "been none",
    "[engine]") {
  std::function<void(sg::Context&, bool)> hook = [](sg::Context&, bool) {};
  auto const make = [&] {
    sg::Options options;
    options.replicas = {2, 3, 1};
    return sg::Pipeline{Embedding{}, Trap{&hook}, Dense{}}.with(
        sg::host::Threads{2}, made(sg::schedule::OneFOneB{}), Loss{}, optimizer(), options);
  };
  auto const data = row_model::batch(0, 4, 5, true);
  auto undisturbed = make();
  sg::run(undisturbed.step(data));
  for (bool const backward : {false, true})
    for (std::size_t row : {std::size_t{0}, std::size_t{1}})
      for (int m = 0; m < 4; ++m)
        for (bool const cancel : {false, true}) {
          auto train = make();
          auto const before = bits(train);
          stagger::stop_source stop;
          hook = [&](sg::Context& context, bool back) {
            if (back != backward || context.microbatch() != m ||
                (context.first_row() > 0) != (row > 0))
              return;
            if (!cancel) throw std::runtime_error("trap");
            stop.request_stop();
          };
          CHECK_THROWS(sg::run(train.step(data, stop.get_token())));
          CHECK(bits(train) == before);
          hook = [](sg::Context&, bool) {};
          sg::run(train.step(data));
          CHECK(bits(train) == bits(undisturbed));
        }
}

TEST_CASE("engine/Replicas: a program of replicas reaches its end with any number of slots",
          "[engine]") {
  using namespace sg::schedule;
  for (auto const& counts :
       {std::vector{1, 4, 3, 2}, std::vector{5, 1, 5, 1}, std::vector{3, 3, 2, 2}})
    for (std::uint32_t const spare : {0U, 1U, 5U})
      for (Made const& schedule : {made(GPipe{}), made(OneFOneB{}), made(Chimera{})}) {
        auto const replicas = sg::Replicas::even(counts.data(), counts.size());
        auto const program = sg::lay_out(schedule.table({.ranks = 4, .microbatches = 8}),
                                         {.spare_slots = spare, .replicas = &replicas});
        CHECK(sg::play(program).empty());
        CHECK(program.computing == static_cast<int>(replicas.parts().size()));
      }
}

}  // namespace replicas_test
