// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/placement/explicit_map.hpp>
#include <stagger/train/pipeline.hpp>

#include "barrier.hpp"
#include "catch.hpp"
#include "trap_model.hpp"
#include "world.hpp"

namespace pipeline_faults_test {

// What goes wrong in one process is an error in all, no parameter changes, and the pipeline can be
// used again.

namespace {

using namespace trap_model;

/// One layer and rank for each process.
auto made(sg::Options options, float learning = 0.1F) {
  std::vector<Scale> layers;
  for (int l = 0; l < processes(); ++l) layers.push_back(Scale{.layer = l});
  layers.back().factor = sg::Parameter<>{"factor", {learning * 5}};
  return sg::Pipeline{std::move(layers)}.with(Sum{}, sg::mpi::Processes{.join_deadline_s = 20},
                                              options);
}

sg::Batch<Numbers, float> const data{{{1, 2}, {3}, {4, 5, 6}}, {1, 2, 3}};

template <class Make> std::pair<sg::Errc, std::string> error_of(Make make) {
  try {
    make();
  } catch (sg::Error const& e) {
    return {e.code(), e.what()};
  } catch (std::exception const& e) {
    return {sg::Errc::bad_data, e.what()};
  }
  return {sg::Errc::io, "no error"};
}

template <class Train> std::vector<float> factors(Train& train) {
  train.gather_parameters();
  std::vector<float> all;
  for (auto& state : train.parameters()) all.push_back(state.template values<float>()[0]);
  return all;
}

/// @param code, other  in the process at fault, in the others
template <class Train>
void require_error(Train& train, int at_fault, std::pair<sg::Errc, std::string> const& expected,
                   std::pair<sg::Errc, std::string> const& elsewhere) {
  auto const before = factors(train);
  auto const got = error_of([&] { sg::run(train.step(data)); });
  auto const& wanted = process() == at_fault ? expected : elsewhere;
  INFO(got.second);
  REQUIRE(got.first == wanted.first);
  REQUIRE(got.second.find(wanted.second) != std::string::npos);
  trap = {};
  MPI_Barrier(MPI_COMM_WORLD);
  REQUIRE(factors(train) == before);
  auto const steps = train.steps();
  for (int again = 0; again < 2; ++again) sg::run(train.step(data));
  REQUIRE(train.steps() == steps + 2);
  REQUIRE(factors(train) != before);
}

}  // namespace

TEST_CASE("mpi/Processes: a stage that throws ends the step in every process", "[mpi]") {
  auto train = made({.deadline_s = 60});
  sg::run(train.step(data));
  for (int const layer : {0, processes() - 1})
    for (bool const backward : {false, true})
      for (int const microbatch : {0, 2}) {
        trap = {layer, microbatch, backward, [] { throw std::runtime_error("no such word"); }};
        require_error(train, layer, {sg::Errc::bad_data, "no such word"},
                      {sg::Errc::peer_failed,
                       "process " + std::to_string(layer) + " ended the step: no such word"});
        // Also where an error of the engine with this code has the same words in all processes.
        trap = {layer, microbatch, backward,
                [] { stagger::raise(sg::Errc::mismatch, "no such dialect"); }};
        require_error(train, layer, {sg::Errc::mismatch, "no such dialect"},
                      {sg::Errc::mismatch,
                       "process " + std::to_string(layer) + " ended the step: no such dialect"});
      }
}

TEST_CASE("mpi/Processes: a step cancelled in one process is cancelled in all", "[mpi]") {
  auto train = made({.deadline_s = 60});
  sg::run(train.step(data));
  static stagger::stop_source stop;
  stop = {};
  auto const before = factors(train);
  trap = {0, 1, true, [] { stop.request_stop(); }};
  auto const got = error_of([&] { sg::run(train.step(data, stop.get_token())); });
  trap = {};
  INFO(got.second);
  REQUIRE(got.first == (process() == 0 ? sg::Errc::cancelled : sg::Errc::peer_failed));
  REQUIRE(got.second.find("the step was cancelled") != std::string::npos);
  MPI_Barrier(MPI_COMM_WORLD);
  REQUIRE(factors(train) == before);
  sg::run(train.step(data));
}

TEST_CASE("mpi/Processes: stops that all processes ask for at once end a step alike", "[mpi]") {
  auto train = made({.deadline_s = 60});
  for (int round = 0; round < 100; ++round) {
    stagger::stop_source stop;
    static std::atomic<bool> reached;
    reached = false;
    std::thread asks([&] {
      while (!reached) std::this_thread::yield();
      stop.request_stop();
    });
    trap = {process(), round % 3, round % 2 == 0, [] { reached = true; }};
    auto const got = error_of([&] { sg::run(train.step(data, stop.get_token())); });
    reached = true;
    asks.join();
    trap = {};
    INFO(got.second);
    REQUIRE((got.second == "no error" ||
             got.second.find("the step was cancelled") != std::string::npos));
    long const steps = static_cast<long>(train.steps());
    long least = 0;
    long most = 0;
    MPI_Allreduce(&steps, &least, 1, MPI_LONG, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&steps, &most, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    REQUIRE(least == most);
  }
  sg::run(train.step(data));
}

TEST_CASE("mpi/Processes: a process that hangs is named with the action it owes", "[mpi]") {
  if (processes() == 1 || processes() == 3) return;  // with 3, mpi.pipeline.hang shows it
  auto train = made({.deadline_s = 2});
  sg::run(train.step(data));
  auto const before = factors(train);
  int const last = processes() - 1;
  Barrier const barrier;
  static Barrier const* told;  // the others have their error, and the one that hangs may go on
  told = &barrier;
  trap = {last, 1, true, [] { told->wait(); }};
  auto const got = error_of([&] { sg::run(train.step(data)); });
  trap = {};
  if (process() != last) barrier.wait();
  INFO(got.second);
  REQUIRE(got.first == sg::Errc::deadline);
  std::string const name = std::to_string(last);
  REQUIRE(got.second.find("no rank moved for 2 s") != std::string::npos);
  REQUIRE(got.second.find("process " + name + " has not been heard of") != std::string::npos);
  REQUIRE(got.second.find("its rank " + name + " owes " + name + "B1") != std::string::npos);
  MPI_Barrier(MPI_COMM_WORLD);
  REQUIRE(factors(train) == before);
  sg::run(train.step(data));
}

TEST_CASE("mpi/Processes: processes that differ find out at once, by name", "[mpi]") {
  if (processes() == 1) return;
  int const odd = processes() - 1;
  bool const here = process() == odd;
  auto const refused = [&](auto make) {
    auto const got = error_of(make);
    INFO(got.second);
    REQUIRE(got.first == sg::Errc::mismatch);
    return got.second;
  };
  sg::Options options;
  options.seed = here ? 2 : 1;
  REQUIRE(refused([&] {
            (void)made(options);
          }).find("ranks disagree on Options::seed: rank 0 has '1', rank " + std::to_string(odd)) ==
          0);
  REQUIRE(
      refused([&] {
        (void)made({}, here ? 0.2F : 0.1F);
      }).find("ranks disagree on the values of layer " + std::to_string(odd) + "'s parameters") ==
      0);
  auto train = made({});
  auto const shorter = here ? sg::Batch<Numbers, float>{{{1}, {2}}, {1, 2}} : data;
  REQUIRE(refused([&] {
            sg::run(train.step(shorter));
          }).find("ranks disagree on the number of microbatches: rank 0 has '3'") == 0);
  sg::run(train.step(data));
}

namespace {

struct Opaque {  // owns what it points to: its bytes say nothing elsewhere
  std::vector<float*> values;
};
struct Wrap {
  using Input = Numbers;
  using Output = Opaque;
  void forward(sg::Context&, Numbers const&, Opaque&, sg::NothingSaved&) {}
  void backward_input(sg::Context&, Numbers const&, Opaque const&, Numbers&, sg::NothingSaved&) {}
};
struct Unwrap {
  using Input = Opaque;
  using Output = Numbers;
  void forward(sg::Context&, Opaque const&, Numbers& y, sg::NothingSaved&) { y = {1}; }
  void backward_input(sg::Context&, Opaque const&, Numbers const&, Opaque&, sg::NothingSaved&) {}
};
static_assert(!sg::Portable<Opaque>::exists);

}  // namespace

TEST_CASE("mpi/Processes: a value that cannot travel is refused before the first step", "[mpi]") {
  auto train = sg::Pipeline{Wrap{}, Unwrap{}, Scale{.layer = -2}, Scale{.layer = -2}}.with(
      Sum{}, sg::mpi::Processes{});
  auto const got = error_of([&] { train.prepare(2); });
  if (processes() < 3 || processes() == 3) {  // both are on process 0
    REQUIRE(got.second == "no error");
  } else {
    REQUIRE(got.first == sg::Errc::bad_configuration);
    REQUIRE(got.second.find("the value between the stages 0 and 1 cannot go to another process") ==
            0);
  }
}

TEST_CASE("mpi/Processes: a deadline that is no time is refused, also of steps", "[mpi]") {
  for (double const seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    auto const refused = [&](char const* name, auto make) {
      auto const got = error_of(make);
      CAPTURE(seconds, got.second);
      CHECK(got.first == sg::Errc::bad_configuration);
      CHECK(got.second == sg::text(name, " is ", seconds,
                                   " s, in which nothing can be waited for; use a positive time"));
    };
    auto const with = [](sg::Options options, sg::mpi::Processes device) {
      std::vector<Scale> const layers(static_cast<std::size_t>(processes()), Scale{.layer = -2});
      static_cast<void>(sg::Pipeline{layers}.with(Sum{}, device, options));
    };
    refused("Processes::join_deadline_s", [&] { with({}, {.join_deadline_s = seconds}); });
    refused("Options::deadline_s", [&] { with({.deadline_s = seconds}, {}); });
  }
}

TEST_CASE("mpi/Processes: more processes than ranks are refused", "[mpi]") {
  if (processes() == 1) return;
  auto const got =
      error_of([&] { (void)sg::Pipeline{Scale{.layer = -2}}.with(Sum{}, sg::mpi::Processes{}); });
  REQUIRE(got.first == sg::Errc::bad_configuration);
  REQUIRE(got.second.find("for 1 rank;") != std::string::npos);
}

TEST_CASE("mpi/Processes: a placement that leaves a process without a rank is refused", "[mpi]") {
  if (processes() == 1) return;
  int const last = processes() - 1;
  std::vector<Scale> layers;
  std::vector<int> places;
  for (int l = 0; l <= last; ++l) {
    layers.push_back(Scale{.layer = l});
    places.push_back(l == last ? 0 : l);
  }
  auto const got = error_of([&] {
    (void)sg::Pipeline{layers}.with(Sum{}, sg::mpi::Processes{.join_deadline_s = 20},
                                    sg::placement::ExplicitMap{places});
  });
  REQUIRE(got.first == sg::Errc::bad_configuration);
  REQUIRE(got.second == "the placement gives process " + std::to_string(last) +
                            " no rank; give each of " + std::to_string(processes()) +
                            " processes at least one, or start fewer processes");
}

TEST_CASE("mpi/Processes: counts of measured steps that differ are found when they meet", "[mpi]") {
  if (processes() == 1) return;
  bool const here = process() == processes() - 1;
  for (bool const measured : {true, false}) {
    sg::collective::AllReduce<> grouped;
    if (here && measured) grouped.measured_steps = 4;
    if (here && !measured) grouped.renew_every = 7;
    auto const got = error_of([&] {
      std::vector<Scale> layers(static_cast<std::size_t>(processes()));
      (void)sg::Pipeline{layers}.with(Sum{}, sg::mpi::Processes{.join_deadline_s = 20}, grouped);
    });
    INFO(got.second);
    REQUIRE(got.first == sg::Errc::mismatch);
    REQUIRE(got.second.find(measured
                                ? "AllReduce::measured_steps: rank 0 has '5'"
                                : "AllReduce::renew_every: rank 0 has '0'") != std::string::npos);
  }
}

namespace {

/// Numbers, or none.
struct Perhaps {
  std::optional<Numbers> numbers;
  auto fields() { return std::tie(numbers); }
  auto fields() const { return std::tie(numbers); }
};
/// Hands on every second microbatch alone.
struct Thins {
  using Input = Numbers;
  using Output = Perhaps;
  void forward(sg::Context& context, Numbers const& x, Perhaps& y, sg::NothingSaved&) {
    y.numbers.reset();
    if (context.microbatch() % 2 == 0) y.numbers = x;
  }
  void backward(sg::Context&, Numbers const& x, Perhaps const& dy, Numbers& dx, sg::NothingSaved&) {
    dx = dy.numbers.value_or(Numbers(x.size(), 0));
  }
};
/// Takes the number 7 for what is missing. `differs`: a repeated forward gives something else.
struct Fills {
  using Input = Perhaps;
  using Output = Numbers;
  bool differs = false;
  sg::Parameter<> factor{"factor", {0.5F}};
  auto parameters() { return std::tie(factor); }
  void forward(sg::Context& context, Perhaps const& x, Numbers& y, sg::NothingSaved&) {
    y = x.numbers.value_or(Numbers{7});
    for (float& number : y) number *= context[factor][0];
    if (differs && context.recomputes() && context.microbatch() == 2) y.back() += 1;
  }
  void backward(sg::Context& context, Perhaps const& x, Numbers const& dy, Perhaps& dx,
                sg::NothingSaved&) {
    dx.numbers.reset();
    if (!x.numbers) return;
    dx.numbers = dy;
    for (std::size_t i = 0; i < dy.size(); ++i)
      context.gradient(factor)[0] += dy[i] * (*x.numbers)[i];
  }
};
template <class Device> auto thinned(Device device, bool differs) {
  std::vector<Scale> more(static_cast<std::size_t>(std::max(0, processes() - 2)));
  return sg::Pipeline{Thins{}, Fills{differs}, std::move(more)}.with(
      Sum{}, device, sg::Options{.recompute = true, .check_recompute = true});
}

}  // namespace

TEST_CASE("mpi/Processes: a std::optional arrives with its value or without one", "[mpi]") {
  auto there = thinned(sg::mpi::Processes{.join_deadline_s = 20}, false);
  auto here = thinned(sg::host::Threads{1}, false);
  for (int step = 0; step < 3; ++step)
    REQUIRE(sg::run(there.step(data)).loss == sg::run(here.step(data)).loss);
  here.gather_parameters();
  REQUIRE(factors(there) == factors(here));
}

TEST_CASE("mpi/Processes: a repeated forward that gives other bits ends the step in every process",
          "[mpi]") {
  auto train = thinned(sg::mpi::Processes{.join_deadline_s = 20}, true);
  auto const got = error_of([&] { sg::run(train.step(data)); });
  INFO(got.second);
  REQUIRE(got.first == sg::Errc::mismatch);
  int const at_fault = std::min(1, processes() - 1);
  bool const here = process() == at_fault;
  std::string const begins =
      here ? "" : "process " + std::to_string(at_fault) + " ended the step: ";
  REQUIRE(got.second.find(begins + "forward of layer 1 on rank 1 gave another output for "
                                   "microbatch 2") == 0);
  REQUIRE(train.failed_at() == (here ? "rank 1 in 1F2 (again), layer 1" : ""));
  REQUIRE(train.steps() == 0);
}

}  // namespace pipeline_faults_test
