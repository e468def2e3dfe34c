// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/core/tensor.hpp>
#include <stagger/engine/groups.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/program/traffic.hpp>
#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/train/checkpoint.hpp>
#include <stagger/train/describe.hpp>
#include <stagger/train/pipeline.hpp>
#include <stagger/train/pipeline_footprint.hpp>

#include "catch.hpp"
#include "engine/not_finite_steps.hpp"
#include "engine/split_model.hpp"
#include "full.hpp"
#include "world.hpp"

namespace groups_test {

// Groups of ranks that share layers, in several processes. Each assertion holds in every process.

using namespace split_model;

namespace {

/// Ranks of all positions.
int ranks_of(Case const& of) {
  int sum = 0;
  for (int const count : of.counts) sum += count;
  auto const positions = static_cast<int>(of.cuts.size() + 1) / of.schedule.chunks();
  return of.counts.empty() ? positions * of.members * of.groups : sum;
}

template <class Trainer> std::vector<std::byte> whole_bits(Trainer& train) {
  train.gather_parameters();
  return bits(train);
}

}  // namespace

TEST_CASE("mpi/groups: three dense layers split in two have the bits of threads", "[mpi]") {
  if (processes() > 2) return;
  auto const make = [](auto device) {
    return sg::Pipeline{sg::Sequential{Linear<double>{inputs, 8, 1}, Linear<double>{8, 9, 2},
                                       Linear<double>{9, outputs, 3}}}
        .with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
              sg::loss::MeanSquaredError<double>{}, optimizer(), device,
              sg::Options{.replicas = {2}});
  };
  auto train = make(sg::mpi::Processes{});
  auto threads = make(sg::host::Threads{1});
  for (int step = 0; step < 3; ++step) {
    auto const data = batch<double>(step, 2, 5);
    CHECK(sg::run(train.step(data)).loss == sg::run(threads.step(data)).loss);
    REQUIRE(whole_bits(train) == bits(threads));
  }
}

TEST_CASE("mpi/groups: whatever the schedule, positions and processes, the bits of threads",
          "[mpi]") {
  int number = 0;
  for (Case const& of : wide()) {
    if (ranks_of(of) < processes()) continue;
    CAPTURE(number++);
    auto train = pipeline<double>(sg::mpi::Processes{}, of);
    auto threads = pipeline<double>(sg::host::Threads{1}, of);
    for (int step = 0; step < 2; ++step) {
      auto const data = batch<double>(step, of.microbatches, 17);
      auto const metrics = sg::run(train.step(data));
      auto const expected = sg::run(threads.step(data));
      CHECK(metrics.loss == expected.loss);
      CHECK(metrics.gradient_norm == expected.gradient_norm);
    }
    REQUIRE(whole_bits(train) == bits(threads));
    auto const data = batch<double>(3, of.microbatches, 18);
    CHECK(sg::run(train.evaluate(data)).loss == sg::run(threads.evaluate(data)).loss);
  }
}

TEST_CASE("mpi/groups: whichever two options meet, the bits of threads", "[mpi]") {
  // The number of processes is one of the options: 2, 3 or 4. One process runs all choices, and in
  // full so do all numbers.
  auto const wanted = [](Choice const& of) { return 2 + static_cast<int>(of.back()); };
  auto const chosen =
      choices([&](Choice const& of) { return full() || ranks_of(case_of(of)) >= wanted(of); });
  for (Choice const& choice : chosen) {
    Case const of = case_of(choice);
    if (ranks_of(of) < processes()) continue;
    if (!full() && processes() != 1 && processes() != wanted(choice)) continue;
    CAPTURE(choice);
    auto train = pipeline<double>(sg::mpi::Processes{}, of);
    auto threads = pipeline<double>(sg::host::Threads{1}, of);
    auto const data = batch<double>(0, of.microbatches, 17);
    auto const metrics = sg::run(train.step(data));
    auto const expected = sg::run(threads.step(data));
    CHECK(metrics.loss == expected.loss);
    CHECK(metrics.gradient_norm == expected.gradient_norm);
    REQUIRE(whole_bits(train) == bits(threads));
  }
}

TEST_CASE("mpi/groups: layers updated in each pass have the bits of threads", "[mpi]") {
  int number = 0;
  for (Made const& schedule : {made(sg::schedule::OneFOneB{}), made(sg::schedule::GPipe{})})
    for (auto const& [cuts, counts] : std::vector<std::pair<std::vector<int>, std::vector<int>>>{
             {{}, {2}}, {{}, {4}}, {{3}, {2, 2}}, {{1}, {3, 2}}}) {
      Case of{.microbatches = 4, .schedule = schedule, .cuts = cuts, .counts = counts};
      of.members = counts.back();
      of.update = sg::partition::Update::each_pass;
      of.options.recompute = number % 2 == 1;
      of.options.non_finite = sg::NonFinite::skip;
      if (ranks_of(of) < processes()) continue;
      CAPTURE(number++);
      auto train = pipeline<double>(sg::mpi::Processes{}, of);
      auto threads = pipeline<double>(sg::host::Threads{1}, of);
      auto const step = [&](int i) {
        auto const data = batch<double>(i, of.microbatches, 17);
        CHECK(sg::run(train.step(data)).loss == sg::run(threads.step(data)).loss);
      };
      for (int i = 0; i < 2; ++i) step(i);
      REQUIRE(whole_bits(train) == bits(threads));
      auto wrong = batch<double>(2, of.microbatches, 17);  // fails behind updates of earlier passes
      wrong.inputs[2] = numbers<double>(17, inputs - 1, 3);
      CHECK_THROWS_AS(sg::run(train.step(wrong)), std::exception);
      CHECK(train.steps() == 2);
      REQUIRE(whole_bits(train) == bits(threads));
      auto spoilt = batch<double>(2, of.microbatches, 17);  // is skipped behind such updates
      spoilt.inputs[3][0] = std::numeric_limits<double>::infinity();
      CHECK(sg::run(train.step(spoilt)).skipped == 1);
      CHECK(train.steps() == 2);
      REQUIRE(whole_bits(train) == bits(threads));
      step(2);
      REQUIRE(whole_bits(train) == bits(threads));
    }
}

TEST_CASE("mpi/groups: the optimizer's state shared out, and groups of gradients, change no bit",
          "[mpi]") {
  namespace collective = sg::collective;
  int number = 0;
  for (std::vector<int> const& counts : {std::vector{4}, std::vector{2, 4}, std::vector{4, 2}}) {
    Case of{.pattern = 11, .microbatches = 4, .counts = counts};
    if (counts.size() == 2) of.cuts = {3};
    if (ranks_of(of) < processes()) continue;
    of.options.clip_norm = 0.05;
    CAPTURE(number++);
    auto train = pipeline<double>(
        sg::mpi::Processes{}, of,
        collective::AllReduce<collective::grouping::Layerwise>{.shard_optimizer = true});
    auto threads = pipeline<double>(sg::host::Threads{1}, of);
    auto const step = [&](int i) {
      auto const data = batch<double>(i, 4, 17);
      auto const metrics = sg::run(train.step(data));
      auto const expected = sg::run(threads.step(data));
      CHECK(metrics.loss == expected.loss);
      CHECK(metrics.gradient_norm == expected.gradient_norm);
    };
    for (int i = 0; i < 2; ++i) step(i);
    REQUIRE(whole_bits(train) == bits(threads));
    step(2);
    REQUIRE(whole_bits(train) == bits(threads));
    static_cast<void>(train.parameters());  // without the others', which changes nothing
    step(3);
    std::vector<std::byte> shown;
    train.each_parameter(0, [&](sg::ParameterState const& state) {
      for (auto const block : {state.value, state.state[0], state.state[1]})
        shown.insert(shown.end(), block.begin(), block.end());
    });
    if (process() == 0) REQUIRE(shown == bits(threads));
  }
}

TEST_CASE("mpi/groups: gradients that the library adds up are those of slices", "[mpi]") {
  namespace collective = sg::collective;
  using Layerwise = collective::AllReduce<collective::grouping::Layerwise>;
  if (processes() != 4) return;
  for (std::vector<int> const& counts : {std::vector{4}, std::vector{2, 2}})
    for (bool const shards : {false, true}) {
      Case of{.pattern = 11, .microbatches = 4, .counts = counts};
      if (counts.size() == 2) of.cuts = {3};
      of.options.clip_norm = 0.05;
      CAPTURE(counts, shards);
      auto const make = [&](collective::By by) {
        return pipeline<double>(sg::mpi::Processes{}, of,
                                Layerwise{.by = by, .shard_optimizer = shards});
      };
      auto library = make(collective::By::library);
      auto slices = make(collective::By::slices);
      for (int i = 0; i < 3; ++i) {
        auto const data = batch<double>(i, 4, 17);
        auto const metrics = sg::run(library.step(data));
        auto const expected = sg::run(slices.step(data));
        CHECK(metrics.loss == Approx(expected.loss).epsilon(1e-12));
        CHECK(metrics.gradient_norm == Approx(expected.gradient_norm).epsilon(1e-12));
      }
      library.gather_parameters();
      slices.gather_parameters();
      CHECK(difference<double>(library, slices) < 1e-12);
    }
}

namespace {

/// Writes parameters and states of `from` into a folder, and reads them from there into `to`.
class Folder {
 public:
  Folder() {
    int name = static_cast<int>(getpid());
    MPI_Bcast(&name, 1, MPI_INT, 0, MPI_COMM_WORLD);
    path_ = std::filesystem::temp_directory_path() / ("stagger-groups-" + std::to_string(name));
  }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
  ~Folder() {
    MPI_Barrier(MPI_COMM_WORLD);
    std::error_code ignored;
    if (process() == 0) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] sg::Checkpoints checkpoints() const { return sg::Checkpoints(path_.string()); }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("mpi/groups: a checkpoint of groups of two is read by groups of four, and by one rank",
          "[mpi]") {
  Case const two{.members = 2, .groups = 2};
  Case const four{.members = 4, .pairs = true};
  auto train = pipeline<double>(sg::mpi::Processes{}, two);
  auto threads = pipeline<double>(sg::host::Threads{1}, two);
  for (int step = 0; step < 2; ++step) {
    sg::run(train.step(batch<double>(step, 2, 17)));
    sg::run(threads.step(batch<double>(step, 2, 17)));
  }
  Folder const folder;
  sg::CheckpointState state;  // those of processes that do not write are not looked at
  if (process() == 0) state = {train.steps(), 7, "split model", ""};
  folder.checkpoints().write(state, train);
  MPI_Barrier(MPI_COMM_WORLD);
  auto const restore = [&](auto& into) {
    static_cast<void>(folder.checkpoints().restore("split model", into));
    CHECK(into.steps() == train.steps());
  };
  auto one = one_device<double>(two);
  auto const found = folder.checkpoints().restore("split model", one.parameters());
  one.resume(found.state.step);
  CHECK(bits(one) == bits(threads));

  auto plain = pipeline<double>(sg::host::Threads{1}, four);  // which every process has whole
  restore(plain);
  CHECK(bits(plain) == bits(threads));
  auto again = pipeline<double>(sg::mpi::Processes{}, four);
  again.prepare(2);
  restore(again);
  auto const data = batch<double>(2, 2, 17);
  CHECK(sg::run(again.step(data)).loss == sg::run(plain.step(data)).loss);
  CHECK(whole_bits(again) == bits(plain));
}

TEST_CASE(
    "mpi/groups: members send each other as much as on threads, and each value to a process "
    "once",
    "[mpi]") {
  using enum sg::TrafficKind;
  // The number of a slot and of a microbatch, the columns of the whole, and the extents.
  constexpr std::uint64_t header = 2 + 4 + 4 + sizeof(sg::detail::TensorShape);
  for (unsigned const pattern : {15U, 5U, 10U})
    for (bool const pairs : {false, true}) {
      Case const of{.pattern = pattern, .members = processes(), .pairs = pairs};
      if (processes() == 1) return;
      CAPTURE(pattern, pairs);
      auto train = pipeline<float>(sg::mpi::Processes{}, of);
      auto threads = pipeline<float>(sg::host::Threads{1}, of);
      for (int step = 0; step < 3; ++step) {
        auto const data = batch<float>(step, 2, 17);
        sg::run(train.step(data));
        sg::run(threads.step(data));
      }
      for (auto const kind : {shared_activations, shared_gradients, activations, gradients}) {
        auto const sent = train.traffic().of(process(), kind);
        auto const expected = threads.traffic().of(process(), kind);
        CHECK(sent.messages == expected.messages);
        CHECK(sent.bytes == expected.bytes + sent.messages * header);
      }
    }
  if (processes() != 2) return;
  // Four members in two processes: what a member gives goes to the other process once.
  Case const of{.members = 4};
  auto train = pipeline<float>(sg::mpi::Processes{}, of);
  auto threads = pipeline<float>(sg::host::Threads{1}, of);
  sg::run(train.step(batch<float>(0, 2, 17)));
  sg::run(threads.step(batch<float>(0, 2, 17)));
  for (int rank = 2 * process(); rank < 2 * process() + 2; ++rank)
    for (auto const kind : {shared_activations, shared_gradients})
      CHECK(3 * train.traffic().of(rank, kind).messages ==
            threads.traffic().of(rank, kind).messages);
}

TEST_CASE("mpi/groups: a process holds values, gradients and states of its own pieces alone",
          "[mpi]") {
  int const members = processes();
  auto const chain = [] {
    return sg::Sequential{Linear<double>{inputs, 24, 1}, Squash<double>{},
                          Linear<double>{24, 40, 2}, Linear<double>{40, outputs, 3}};
  };
  auto train =
      sg::Pipeline{chain()}.with(sg::partition::LayerSplit{.group = members, .threshold = 0},
                                 sg::loss::MeanSquaredError<double>{}, optimizer(),
                                 sg::mpi::Processes{}, sg::Options{.replicas = {members}});
  sg::run(train.step(batch<double>(0, 2, 17)));
  std::uint64_t bytes = 0;  // each parameter begins at a multiple of 64
  for (auto const& [in, out] :
       {std::pair{inputs, std::size_t{24}}, std::pair{std::size_t{24}, std::size_t{40}},
        std::pair{std::size_t{40}, outputs}}) {
    auto const own =
        sg::features_of(static_cast<std::size_t>(process()), static_cast<std::size_t>(members), out)
            .size();
    for (std::size_t const size : {own * in, own}) bytes += (size * sizeof(double) + 63) / 64 * 64;
  }
  CHECK(train.memory().parameters == 3 * bytes);
  CHECK(train.memory().optimizer_state == bytes);
  train.gather_parameters();
  CHECK(train.memory().parameters > bytes * 3 - (members == 1 ? 1 : 0));
  sg::run(train.step(batch<double>(1, 2, 17)));  // which gives back what was gathered
  CHECK(train.memory().parameters == 3 * bytes);
}

TEST_CASE("mpi/groups: what several groups have in a process is predicted to the byte", "[mpi]") {
  Case const of{.members = 2,
                .microbatches = 2,
                .schedule = made(sg::schedule::OneFOneB{}),
                .cuts = {3},
                .counts = {4, 4}};
  auto train = pipeline<double>(sg::mpi::Processes{}, of);
  auto here = pipeline<double>(sg::host::Threads{1}, of);
  auto const footprint =
      sg::footprint(here, sg::loss::MeanSquaredError<double>{}, numbers<double>(8, inputs, 1),
                    numbers<double>(8, outputs, 2));
  for (int step = 0; step < 2; ++step) sg::run(train.step(batch<double>(step, 2, 16)));
  auto const& machine = here.machine();
  std::vector<int> cuts;
  for (std::size_t s = 1; s < machine.model.stages(); ++s)
    cuts.push_back(static_cast<int>(machine.model.first_layer[s]));
  std::vector<int> ranks;  // as they are spread by default
  for (int r = 0; r < 8; ++r)
    if (r * processes() / 8 == process()) ranks.push_back(r);
  auto const predicted = sg::predicted_parameters(train.program(2), cuts,
                                                  machine.model.optimizer.states, ranks, footprint);
  std::uint64_t of_stages = 0;
  for (auto const& rank : train.machine().ranks()) of_stages += rank.context.scratch_bytes();
  CHECK(train.memory().parameters == predicted.parameters);
  CHECK(train.memory().optimizer_state == predicted.optimizer_state);
  CHECK(train.memory().scratch == predicted.scratch + of_stages);
  CHECK((predicted.scratch == 0) == (processes() <= 2));  // each position is in one process
}

TEST_CASE("mpi/groups: who holds the same piece shares its optimizer's state out, each of it once",
          "[mpi]") {
  if (processes() != 2 && processes() != 4) return;
  auto const state_with = [&](bool shards) {
    auto train =
        sg::Pipeline{sg::Sequential{Linear<double>{inputs, 32, 1}, Linear<double>{32, 64, 2}}}.with(
            sg::partition::LayerSplit{.group = 2, .threshold = 0},
            sg::loss::MeanSquaredError<double>{}, sg::optimizer::AdamW{}, sg::mpi::Processes{},
            sg::Options{.replicas = {4}},
            sg::collective::AllReduce<sg::collective::grouping::Layerwise>{.shard_optimizer =
                                                                               shards});
    Batch<double> data;
    data.inputs.push_back(numbers<double>(8, inputs, 1));
    data.targets.push_back(numbers<double>(8, 64, 2));
    sg::run(train.step(data));
    return train.memory().optimizer_state;
  };
  // Two groups have each piece twice. Of two processes each has a group, of four each a member.
  std::uint64_t const whole = state_with(false);
  std::uint64_t const values = (inputs + 1) * 32 + (32 + 1) * 64;
  CHECK(whole == (processes() == 2 ? 2 : 1) * sizeof(double) * values);
  CHECK(state_with(true) == whole / 2);
}

TEST_CASE("mpi/groups: averaging sends as much as its formula says, and 2 bytes a message",
          "[mpi]") {
  if (processes() != 4) return;
  for (AveragedCase const& of : averaged_cases()) {
    CAPTURE(of.members);
    auto train = averaged_pipeline(sg::mpi::Processes{}, of.members);
    for (int step = 0; step < 3; ++step) sg::run(train.step(averaged_batch(step)));
    auto const [plan, layers, numbers_of_layers] = sg::describe(train);
    CHECK(sg::partition::averaged_elements(plan, layers, process() % of.members, 4) ==
          static_cast<double>(of.elements));
    auto const sent = train.traffic().of(process(), sg::TrafficKind::gradient_sums);
    CHECK(sent.messages == 3 * of.messages);
    CHECK(sent.bytes == 3 * (of.elements * sizeof(float) + 2 * of.messages));
    CHECK(train.traffic().of(sg::TrafficKind::gradient_sums) == sent);
  }
}

TEST_CASE("mpi/groups: the paper's network, so many weights in a process", "[mpi]") {
  int const members = processes();
  if (members == 3) return;
  auto train =
      sg::Pipeline{sg::Sequential{IdleWeights::convolutions(1'734'336, 4096),
                                  IdleWeights{4096, 1024}, IdleWeights{1024, 1024},
                                  IdleWeights{1024, 10}}}
          .with(sg::partition::LayerSplit{.group = members}, optimizer(), sg::mpi::Processes{},
                sg::loss::MeanSquaredError<float>{}, sg::Options{.replicas = {members}});
  auto const rows = static_cast<std::size_t>(members);
  Batch<float> data;
  data.inputs.push_back(numbers<float>(rows, 1, 1));
  data.targets.push_back(numbers<float>(rows, 10, 2));
  sg::run(train.step(data));
  std::uint64_t const weights[] = {0, 6'987'456, 4'366'016, 0, 3'055'296, 0, 0, 0, 2'399'936};
  CHECK(train.memory().parameters == sizeof(float) * 3 * weights[members]);  // and no others
  CHECK(train.memory().optimizer_state == sizeof(float) * weights[members]);
  // Of the convolutions' gradients, those of the part that the process adds up arrive from each of
  // the others: whole units of 16 floats.
  std::uint64_t const units = 1'734'336 / 16;
  auto const here = static_cast<std::size_t>(process());
  std::uint64_t const part = 16 * (units * (here + 1) / rows - units * here / rows);
  CHECK(train.memory().scratch == sizeof(float) * part * (rows - 1));
  double const saved[] = {0, 0, 0.375, 0, 0.563, 0, 0, 0, 0.657};
  double const share = static_cast<double>(weights[members]) / static_cast<double>(weights[1]);
  CHECK(1 - share == Approx(saved[members]).margin(5e-4));
}

namespace {

/// Passes on what it is given; in one process it may throw.
struct Trap {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  static constexpr bool element_wise = true;
  static inline bool forward_throws = false;
  static inline bool backward_throws = false;
  static void reach(sg::Context const& context, bool springs) {
    if (springs && context.microbatch() == 1) throw std::runtime_error("no such word");
  }
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    reach(context, forward_throws);
    y = x;
  }
  void backward_input(sg::Context& context, Input const&, Output const& dy, Input& dx,
                      sg::NothingSaved&) const {
    reach(context, backward_throws);
    dx = dy;
  }
};

std::string sentence_of(auto take) {
  try {
    take();
  } catch (std::exception const& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("mpi/Processes: a step whose gradients are not finite leaves no trace in any process",
          "[mpi]") {
  namespace collective = sg::collective;
  using Layerwise = collective::AllReduce<collective::grouping::Layerwise>;
  using not_finite_steps::leave_no_trace;
  sg::mpi::Processes const device;
  int number = 0;
  auto const beside = [&](Case of, auto const&... more) {
    CAPTURE(number);
    if (number++ % 2 == 1) of.options.clip_norm = 0.05;
    if (ranks_of(of) >= processes()) leave_no_trace<double>(device, of, more...);
  };
  beside({.pattern = 0, .members = 1, .microbatches = 4, .cuts = {2, 4, 5}});
  beside({.pattern = 0, .members = 1, .microbatches = 2, .cuts = {3}, .counts = {2, 2}});
  Case const replicas{.pattern = 0, .members = 1, .counts = {4}};
  beside(replicas, Layerwise{});
  beside(replicas, Layerwise{.shard_optimizer = true});
  beside({.pattern = 11, .pairs = true, .counts = {4}}, Layerwise{.shard_optimizer = true});
  beside({.pattern = 15, .groups = 2});
  if (processes() == 4) beside(replicas, Layerwise{.by = collective::By::library});
}

namespace {

/// y = x + shift. In even steps one replica adds to its gradient, in others none.
struct Shift {
  using Input = Matrix<double>;
  using Output = Matrix<double>;
  sg::Parameter<double> shift{"shift", {0.5}};
  auto parameters() { return std::tie(shift); }
  void forward(sg::Context& context, Input const& x, Output& y, sg::NothingSaved&) const {
    y = x;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += context[shift][0];
  }
  void backward(sg::Context& context, Input const&, Output const& dy, Input& dx,
                sg::NothingSaved&) const {
    dx = dy;
    if (context.step() % 2 == 0 && context.microbatch() == 1 && context.first_row() == 0)
      context.gradient(shift)[0] += dy[0];
  }
};

}  // namespace

TEST_CASE("mpi/Processes: what one replica has added to is updated in every process, else nowhere",
          "[mpi]") {
  namespace collective = sg::collective;
  using Layerwise = collective::AllReduce<collective::grouping::Layerwise>;
  auto const make = [](auto device, Layerwise const& sums) {
    return sg::Pipeline{sg::Sequential{Linear<double>{inputs, outputs, 1}, Shift{}}}.with(
        sg::partition::LayerSplit{.group = 1}, sg::loss::MeanSquaredError<double>{},
        sg::optimizer::AdamW{.rate = 0.1}, device, sums, sg::Options{.replicas = {4}});
  };
  for (Layerwise const& sums :
       {Layerwise{}, Layerwise{.shard_optimizer = true},
        Layerwise{.by = processes() == 4 ? collective::By::library : collective::By::slices}}) {
    auto train = make(sg::mpi::Processes{}, sums);
    auto threads = make(sg::host::Threads{1}, {});
    double before = 0.5;
    for (int step = 0; step < 4; ++step) {
      auto const data = batch<double>(step, 2, 8);
      sg::run(train.step(data));
      sg::run(threads.step(data));
      double const own = train.own_parameters()[2].values<double>()[0];
      CHECK((own != before) == (step % 2 == 0));
      CHECK(own == Approx(threads.parameters()[2].values<double>()[0]).epsilon(1e-9));
      before = own;
      MPI_Bcast(&before, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
      REQUIRE(own == before);
    }
  }
}

TEST_CASE("mpi/groups: a member that throws ends the step in all, and changes nothing", "[mpi]") {
  auto const make = [](auto device) {
    return sg::Pipeline{sg::Sequential{Linear<double>{inputs, 8, 1}, Trap{},
                                       Linear<double>{8, 9, 2}, Linear<double>{9, outputs, 3}}}
        .with(sg::partition::LayerSplit{.group = 2, .threshold = 0},
              sg::loss::MeanSquaredError<double>{}, optimizer(), device,
              sg::Options{.clip_norm = 0.1, .deadline_s = 60, .replicas = {4}});
  };
  auto train = make(sg::mpi::Processes{});
  auto threads = make(sg::host::Threads{1});
  for (int step = 0; step < 4; ++step) {
    int const at_fault = step % processes();
    auto const data = batch<double>(step, 2, 17);
    bool& trap = step < 2 ? Trap::forward_throws : Trap::backward_throws;
    trap = process() == at_fault;
    auto const got = sentence_of([&] { sg::run(train.step(data)); });
    trap = false;
    CHECK(got.find("no such word") != std::string::npos);
    CHECK((got.find("process " + std::to_string(at_fault) + " ended the step") == 0) ==
          (process() != at_fault));
    REQUIRE(whole_bits(train) == bits(threads));
    CHECK(sg::run(train.step(data)).loss == sg::run(threads.step(data)).loss);
  }
  REQUIRE(whole_bits(train) == bits(threads));
}

TEST_CASE("mpi/groups: processes that split layers differently are told what differs", "[mpi]") {
  if (processes() == 1) return;
  Case of{.members = 2, .groups = 2};
  if (process() == 1) of.members = 4, of.groups = 1;
  CHECK(sentence_of([&] { static_cast<void>(pipeline<double>(sg::mpi::Processes{}, of)); })
            .find("ranks disagree on partition::LayerSplit: rank 0 has 'group 2, layers 1 by "
                  "outputs 3 by outputs 4 by outputs 6 by outputs', rank 1 has 'group 4, ") == 0);
  of = {.members = 2, .groups = 2};
  of.pairs = process() == 1;
  CHECK(sentence_of([&] {
          static_cast<void>(pipeline<double>(sg::mpi::Processes{}, of));
        }).find("rank 1 has 'group 2, layers 1 by outputs 3 by inputs") != std::string::npos);
}

}  // namespace groups_test
