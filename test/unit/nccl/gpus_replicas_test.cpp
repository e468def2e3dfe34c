// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/detail/group_sums.hpp>

#include "catch.hpp"

#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include <stagger/nccl/gpus.hpp>
#include <stagger/placement/explicit_map.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/schedule/chimera.hpp>
#include <stagger/schedule/dual_pipe.hpp>
#include <stagger/schedule/gpipe.hpp>
#include <stagger/schedule/interleaved.hpp>

#include "cuda/replica_model.hpp"
#include "gpus_processes.hpp"

using namespace replica_model;
using namespace gpus_processes;

namespace {

struct Case {
  char const* name;
  Made schedule;
  int positions;
  sg::Replicas replicas;
  std::vector<int> place;  // GPU of each rank
  std::size_t rows = 4;
};

std::vector<Case> cases() {
  using namespace sg::schedule;
  return {{"gpipe", made(GPipe{}), 1, {2}, {0, 1}},
          {"1f1b", made(OneFOneB{}), 2, {3, 1}, {0, 1, 2, 3}},
          {"split", split(made(OneFOneB{}), 2), 2, {2, 3}, {0, 1, 2, 3, 4}},
          {"uneven", made(OneFOneB{}), 2, {{15, 1}, {1, 1}}, {0, 1, 2, 3}, 16},
          {"uneven, side by side", made(OneFOneB{}), 2, {{3, 1}, {1, 1}}, {0, 1, 0, 1}},
          {"interleaved", made(Interleaved{}), 2, {2, 2}, {0, 1, 0, 1}},
          {"chimera", made(Chimera{}), 2, {2, 1}, {0, 1, 2}},
          {"dualpipe", made(DualPipe{}), 2, {1, 1}, {0, 1}},
          {"one GPU each stage", made(OneFOneB{}), 2, {2, 3}, {0, 0, 1, 1, 1}}};
}

using Grouping = sg::collective::AllReduce<grouping::Named>;

Grouping by(char const* name, int measured_steps) {
  Grouping policy;
  policy.grouping = grouping::named(name);
  policy.measured_steps = measured_steps;
  return policy;
}

sg::nccl::Gpus on(int count) {
  sg::nccl::Gpus gpus;
  for (int g = 0; g < count; ++g) gpus.devices.push_back(g);
  gpus.kernels = &kernels;
  return gpus;
}
int gpus_of(std::vector<int> const& place) {
  return *std::max_element(place.begin(), place.end()) + 1;
}

template <class Device>
auto placed(Device device, Grouping policy, Case const& c, sg::Options options) {
  options.seed = run_seed;
  options.replicas = c.replicas;
  return sg::Pipeline{layers_there()}.with(
      sg::partition::Cuts{even_cuts(c.positions * c.schedule.each)}, c.schedule, LossThere{},
      sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, std::move(device), policy,
      sg::placement::ExplicitMap{c.place}, options);
}

sg::Options options_with(bool clips, bool recompute = false, double deadline_s = 60) {
  sg::Options options;
  if (clips) options.clip_norm = clip;
  options.recompute = recompute;
  options.deadline_s = deadline_s;
  return options;
}

auto on_the_host(Case const& c, sg::Options options) {
  options.replicas = c.replicas;
  return row_model::pipeline(sg::host::Threads{1}, even_cuts(c.positions * c.schedule.each),
                             c.schedule, options);
}

void same_as_on_the_host(Case const& c, Grouping policy, bool clips, bool recompute) {
  CAPTURE(c.name, clips, recompute);
  si::Session const session;
  si::set_machine({.devices = 8});
  si::jitter(7);
  si::in_progress_polls(2);
  astray = 0;
  {
    constexpr int microbatches = 4;
    auto const options = options_with(clips, recompute);
    auto host = on_the_host(c, options);
    auto train = placed(on(gpus_of(c.place)), policy, c, options);
    std::vector<BatchThere> data;  // what was enqueued is used until its ticket is done
    std::vector<sg::Ticket> tickets;
    for (int s = 0; s < 4; ++s) {
      auto const here = row_model::batch(s, microbatches, c.rows, true);
      auto const expected = sg::run(host.step(here));
      data.push_back(upload(here));
      auto const got = sg::run(train.step(data.back()));
      REQUIRE(got.loss == expected.loss);
      REQUIRE(got.gradient_norm == expected.gradient_norm);
      REQUIRE((bits(train) == bits(host)));
    }
    auto const last = row_model::batch(9, microbatches, c.rows, true);
    auto const last_there = upload(last);
    REQUIRE(sg::run(train.evaluate(last_there)).loss == sg::run(host.evaluate(last)).loss);
    std::vector<Matrix> expected(microbatches);
    std::vector<Values> outputs(microbatches);
    sg::run(host.predict(last.inputs, expected));
    sg::run(train.predict(last_there.inputs, outputs));
    for (std::size_t m = 0; m < expected.size(); ++m) {
      auto const got = read(bare(outputs[m]));
      REQUIRE(got.size() == expected[m].size());
      REQUIRE(std::equal(got.data(), got.data() + got.size(), expected[m].data()));
    }
    for (int s = 4; s < 7; ++s) {  // ahead of the devices
      auto const next = row_model::batch(s, microbatches, c.rows, true);
      sg::run(host.step(next));
      data.push_back(upload(next));
      tickets.push_back(sg::enqueue(train.step(data.back())));
    }
    for (auto& ticket : tickets) ticket.wait();
    REQUIRE((bits(train) == bits(host)));
  }
  CHECK(astray == 0);
  si::reset();
  REQUIRE(session.left() == si::Live{});
}

}  // namespace

TEST_CASE("nccl/GroupSums: replicas on several GPUs have the host's bits", "[nccl]") {
  int number = 0;
  for (auto const& c : cases()) {
    if (sanitized && number++ % 3 != 0) continue;
    same_as_on_the_host(c, by("single", 0), true, false);
    same_as_on_the_host(c, by("layerwise", 0), false, true);
    same_as_on_the_host(c, by("optimal", 1), true, false);
  }
}

TEST_CASE("nccl/GroupSums: sums by NCCL agree with the host's to rounding, and in all processes",
          "[nccl]") {
  using sg::collective::By;
  std::vector<Case> const all{
      {"two", made(sg::schedule::GPipe{}), 1, {2}, {0, 1}},
      {"three", made(sg::schedule::GPipe{}), 1, {3}, {0, 1, 2}, 6},
      {"four", made(sg::schedule::OneFOneB{}), 2, {4, 1}, {0, 1, 2, 3, 4}, 8}};
  for (auto const& c : all) {
    CAPTURE(c.name);
    si::Session const session;
    si::set_machine({.devices = 8});
    constexpr int steps = 4;
    auto host = on_the_host(c, options_with(true));
    std::vector<double> losses;
    for (int s = 0; s < steps; ++s)
      losses.push_back(sg::run(host.step(row_model::batch(s, 4, c.rows, false))).loss);
    auto const expected = bits(host);
    std::atomic<int> exact{0};
    std::vector<std::vector<std::byte>> found(static_cast<std::size_t>(gpus_of(c.place)));
    auto const wrong = in_processes(gpus_of(c.place), on(0), [&](sg::nccl::Gpus gpus, int p) {
      auto policy = by("layerwise", 0);
      policy.by = By::library;
      auto train = placed(gpus, policy, c, options_with(true));
      std::string words;
      for (int s = 0; s < steps; ++s) {
        auto const own = upload(row_model::batch(s, 4, c.rows, false));
        double const loss = sg::run(train.step(own)).loss;
        double const apart = std::abs(loss / losses[static_cast<std::size_t>(s)] - 1);
        if (!(apart < 1e-4)) words += "loss ";
      }
      train.gather_parameters();
      found[static_cast<std::size_t>(p)] = bits(train);
      if (found[static_cast<std::size_t>(p)] == expected) ++exact;
      return words;
    });
    for (auto const& words : wrong) CHECK(words == "");
    for (auto const& one : found) CHECK((one == found.front()));
    // The stand-in adds from the last GPU to the first, which two do not notice.
    CHECK((exact == 0) == (c.replicas.counts()[0] > 2));
  }
}

namespace {

Case uneven() {
  return {"uneven", made(sg::schedule::OneFOneB{}), 2, {{3, 1}, {1, 1}}, {0, 1, 2, 3}};
}
Batch batch_of(int step) { return row_model::batch(step, 3, 4, false); }

}  // namespace

TEST_CASE("nccl/GroupSums: replicas in a process each have the host's bits", "[nccl]") {
  bool const shapes_change = GENERATE(false, true);
  int number = 0;
  for (auto const& c : cases()) {
    if (sanitized && number++ % 3 != 0) continue;
    CAPTURE(c.name, shapes_change);
    si::Session const session;
    si::set_machine({.devices = 8});
    si::jitter(3);
    si::in_progress_polls(1);
    astray = 0;
    constexpr int microbatches = 4;
    int const steps = number % 2 == 0 ? 3 : 8;  // some while the groups are being decided
    auto host = on_the_host(c, options_with(true));
    std::vector<sg::Metrics> metrics;
    for (int s = 0; s < steps; ++s)
      metrics.push_back(
          sg::run(host.step(row_model::batch(s, microbatches, c.rows, shapes_change))));
    auto const expected = bits(host);
    auto const wrong = in_processes(gpus_of(c.place), on(0), [&](sg::nccl::Gpus gpus, int) {
      std::string words;
      gpus.shapes_change = shapes_change;
      auto train = placed(gpus, by("optimal", steps == 3 ? 0 : 2), c, options_with(true));
      for (int s = 0; s < steps; ++s) {
        auto const own = upload(row_model::batch(s, microbatches, c.rows, shapes_change));
        auto const got = sg::run(train.step(own));
        auto const at = static_cast<std::size_t>(s);
        if (got.loss != metrics[at].loss) words += "loss ";
        if (got.gradient_norm != metrics[at].gradient_norm) words += "norm ";
      }
      train.gather_parameters();
      if (bits(train) != expected) words += "parameters ";
      return words;
    });
    for (auto const& words : wrong) CHECK(words == "");
    CHECK(astray == 0);
  }
}

TEST_CASE("nccl/GroupSums: sums of replicas become part of a graph, once the groups are decided",
          "[nccl]") {
  int number = 0;
  for (auto const& c : cases()) {
    if (number++ % (sanitized ? 4 : 2) != 1) continue;
    bool const decides = number % 4 == 0;
    CAPTURE(c.name, decides);
    si::Session const session;
    si::set_machine({.devices = 8});
    si::jitter(5);
    si::in_progress_polls(1);
    constexpr int steps = 8;
    auto host = on_the_host(c, options_with(true));
    for (int s = 0; s < steps; ++s) sg::run(host.step(row_model::batch(s % 2, 4, c.rows, false)));
    auto const expected = bits(host);
    auto const words_after = [&](sg::nccl::Gpus gpus) -> std::string {
      sg::cuda::GraphCounts counts;
      gpus.capture = true;
      gpus.counts = &counts;
      auto train = placed(gpus, by("optimal", decides ? 2 : 0), c, options_with(true));
      BatchThere const data[] = {upload(row_model::batch(0, 4, c.rows, false)),
                                 upload(row_model::batch(1, 4, c.rows, false))};
      for (int s = 0; s < steps; ++s) (void)sg::enqueue(train.step(data[s % 2]));
      train.settle();
      std::string words;
      if (gpus.launch) train.gather_parameters();
      if (bits(train) != expected) words += "parameters ";
      // One step warms up; measured ones are enqueued, and the first of a new program.
      if (counts.replays < (decides ? steps - 4 : steps - 1) || counts.replays >= steps)
        words += std::to_string(counts.replays) + " replays";
      return words;
    };
    CHECK(words_after(on(gpus_of(c.place))) == "");
    auto const wrong = in_processes(gpus_of(c.place), on(0),
                                    [&](sg::nccl::Gpus gpus, int) { return words_after(gpus); });
    for (auto const& words : wrong) CHECK(words == "");
  }
}

TEST_CASE("nccl/GroupSums: whatever CUDA or NCCL refuse, parameters are those before or after",
          "[nccl]") {
  auto const c = uneven();
  std::vector<std::vector<std::byte>> course;
  {
    auto host = on_the_host(c, options_with(true));
    for (int s = 0; s < 3; ++s) {
      auto const data = batch_of(s);
      sg::run(host.step(data));
      course.push_back(bits(host));
    }
  }
  int number = 0;
  for (auto const call :
       {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
        si::Call::memcpy_async, si::Call::memset_async, si::Call::set_device,
        si::Call::malloc_from_pool, si::Call::group_end})
    for (int nth = 1; nth <= 140; nth += nth < 4 ? 1 : 12) {
      if (sanitized && number++ % 9 != 0) continue;
      CAPTURE(static_cast<int>(call), nth);
      si::Session const session;
      {
        auto train = placed(on(4), by("layerwise", 0), c, options_with(true));
        auto const step = [&](int s) {
          auto const data = upload(batch_of(s));
          sg::run(train.step(data));
        };
        step(0);
        si::fail(call, nth,
                 call == si::Call::group_end ? static_cast<int>(ncclSystemError)
                                             : static_cast<int>(cudaErrorLaunchFailure));
        auto const refused = words_of([&] { step(1); });
        bool const failed = !refused.empty();
        si::fail(si::Call::comm_init, 1, 0);  // no more of it
        auto const later = words_of([&] { step(failed ? 1 : 2); });
        bool const again = later.empty();
        CAPTURE(refused, later);
        if (!failed) REQUIRE(again);
        if (again) REQUIRE((bits(train) == course[failed ? 1 : 2]));
      }
      si::reset();
      REQUIRE(session.left() == si::Live{});
    }
}

TEST_CASE("nccl/GroupSums: an asynchronous error of a team ends the step before any update",
          "[nccl]") {
  si::Session const session;
  {
    auto train = placed(on(4), by("layerwise", 0), uneven(), options_with(true));
    auto const data = upload(batch_of(0));
    sg::run(train.step(data));
    auto const before = bits(train);
    si::break_communicators(1, 2, ncclRemoteError);
    CHECK(has(words_of([&] { sg::run(train.step(data)); }), "an injected error"));
    CHECK((bits(train) == before));
    CHECK(has(words_of([&] { sg::run(train.step(data)); }), "lost in an earlier step"));
  }
  si::reset();
  CHECK(session.left() == si::Live{});
}

TEST_CASE("nccl/GroupSums: a process that does not come to a sum is an error in time", "[nccl]") {
  si::Session const session;
  std::atomic<bool> over_now{false};
  Case const c{"gpipe", made(sg::schedule::GPipe{}), 1, {2}, {0, 1}};
  auto const wrong = in_processes(2, on(0), [&](sg::nccl::Gpus gpus, int p) {
    auto const options = options_with(true, false, p == 0 ? 0.5 : 60);
    auto train = placed(gpus, by("layerwise", 0), c, options);
    auto const data = upload(batch_of(0));
    sg::run(train.step(data));
    if (p == 1) {
      over_now.wait(false);
      return std::string();
    }
    auto const start = std::chrono::steady_clock::now();
    auto const words = words_of([&] { sg::run(train.step(data)); });
    bool const in_time = std::chrono::steady_clock::now() - start < std::chrono::seconds(30);
    auto const next = words_of([&] { sg::run(train.step(data)); });
    over_now = true;
    over_now.notify_all();
    bool const told =
        has(words, "the GPUs did not move for 0.5 s") || has(words, "waited 0.5 s to");
    return told && in_time && has(next, "lost in an earlier step") ? std::string() : words + next;
  });
  for (auto const& words : wrong) CHECK(words == "");
}

TEST_CASE("nccl/GroupSums: after the first step nothing is made, allocated or awaited", "[nccl]") {
  si::Session const session;
  auto train = placed(on(4), by("layerwise", 0), uneven(), options_with(true));
  auto const data = upload(batch_of(0));
  auto const still = [] {
    using si::Call;
    std::uint64_t sum = 0;
    for (Call const call : {Call::event_create, Call::stream_create, Call::malloc,
                            Call::malloc_host, Call::malloc_from_pool, Call::pool_create,
                            Call::stream_synchronize, Call::memcpy, Call::memset, Call::comm_init})
      sum += si::calls(call);
    return sum;
  };
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  auto const before = still();
  for (int s = 0; s < 3; ++s) sg::run(train.step(data));
  CHECK(still() == before);
}

TEST_CASE("nccl/GroupSums: steps of another number of microbatches use the teams that stand",
          "[nccl]") {
  si::Session const session;
  auto const c = uneven();
  auto train = placed(on(4), by("layerwise", 0), c, options_with(true));
  auto const four = upload(row_model::batch(0, 4, c.rows, false));
  auto const three = upload(row_model::batch(1, 3, c.rows, false));
  sg::run(train.step(four));
  auto const standing = session.left().communicators;
  CHECK(standing > 0);
  for (int again = 0; again < 2; ++again) {
    sg::run(train.step(three));
    sg::run(train.step(four));
    CHECK(session.left().communicators == standing);
  }
}

TEST_CASE("nccl/GroupSums: all groups but the last are issued before the last backward is",
          "[nccl]") {
  auto const c = uneven();
  sg::List<sg::GradientGroup> groups;
  for (int s = 0; s < 2; ++s)
    for (int const lowest : {2, 1, 0})
      groups.push_back({s, lowest, lowest == 2 ? sg::GradientGroup::all : lowest});
  auto const table = c.schedule.table({.ranks = 2, .microbatches = 3});
  auto const program = sg::lay_out(
      table, {.replicas = &c.replicas, .groups = &groups, .group_gradients = &sg::group_gradients});
  std::vector<int> place;
  for (auto const& rank : program.ranks)
    place.push_back(rank.beside < 0 ? static_cast<int>(place.size()) : rank.beside);
  sg::nccl::detail::Routes const routes(program, place);
  std::vector<std::size_t> first_sum(groups.size(), routes.turns().size());
  std::vector<std::size_t> last_part(groups.size());
  for (std::size_t t = 0; t < routes.turns().size(); ++t) {
    auto const& turn = routes.turns()[t];
    auto const& in = program.ranks[turn.rank].code[turn.index];
    if (in.op == sg::Op::reduce) first_sum[in.group] = std::min(first_sum[in.group], t);
    if (in.op == sg::Op::backward_part) last_part[in.group] = t;
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    CHECK(first_sum[g] > last_part[g]);
    if (g % 3 == 0) CHECK(first_sum[g] < last_part[g + 2]);
  }
}

TEST_CASE("nccl/GroupSums: what cannot be run is refused in one sentence", "[nccl]") {
  si::Session const session;
  auto c = uneven();
  auto const data = upload(batch_of(0));
  c.replicas = {{3, 1}, 1};
  c.place = {0, 0, 1};  // both holders of the first stage on one GPU
  CHECK(words_of([&] {
          auto train = placed(on(2), by("single", 0), c, options_with(true));
          sg::run(train.step(data));
        }).empty());
  c.replicas = {3, 1};
  c.place = {0, 0, 1, 1};
  CHECK(
      has(words_of([&] {
            auto train = placed(on(2), by("single", 0), c, options_with(true));
            sg::run(train.step(data));
          }),
          "stage 0 is held by 3 ranks on 2 GPUs; put them on one GPU, or each on one of its own"));
  auto sharded = by("single", 0);
  sharded.shard_optimizer = true;
  CHECK(has(
      words_of([&] { static_cast<void>(placed(on(4), sharded, uneven(), options_with(true))); }),
      "does not share the optimizer's state out"));
  auto const wrong = in_processes(4, on(0), [&](sg::nccl::Gpus gpus, int p) {
    auto own = uneven();
    if (p == 3) own.replicas = {{1, 3}, {1, 1}};
    return words_of([&] { static_cast<void>(placed(gpus, sharded, own, options_with(true))); }) +
           words_of(
               [&] { static_cast<void>(placed(gpus, by("single", 0), own, options_with(true))); });
  });
  CHECK(has(wrong[0], "processes disagree on the shares of Options::replicas"));
}

TEST_CASE("nccl/GroupSums: every replica goes on from what the host writes between steps",
          "[nccl]") {
  si::Session const session;
  auto const c = uneven();
  auto host = on_the_host(c, options_with(true));
  auto first = placed(on(4), by("layerwise", 0), c, options_with(true));
  auto second = placed(on(4), by("single", 0), c, options_with(true));
  std::vector<BatchThere> data;
  for (int s = 0; s < 4; ++s) {
    sg::run(host.step(batch_of(s)));
    data.push_back(upload(batch_of(s)));
  }
  sg::run(second.step(data[3]));  // states of its own, which go
  for (std::size_t s = 0; s < 2; ++s) sg::run(first.step(data[s]));
  auto const from = first.parameters();
  auto const to = second.parameters();
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::copy(from[i].value.begin(), from[i].value.end(), to[i].value.begin());
    for (std::size_t k = 0; k < 2; ++k)
      std::copy(from[i].state[k].begin(), from[i].state[k].end(), to[i].state[k].begin());
  }
  second.resume(first.steps());
  for (std::size_t s = 2; s < 4; ++s) sg::run(second.step(data[s]));
  CHECK((bits(second) == bits(host)));
}

TEST_CASE("nccl/Gpus: processes that group gradients otherwise are refused before they add any up",
          "[nccl]") {
  enum class Differs {
    groups,
    measured_steps,
    renew_every
  } const what = GENERATE(Differs::groups, Differs::measured_steps, Differs::renew_every);
  si::Session const session;
  si::set_machine({.devices = 2});
  auto const told = in_processes(2, on(0), [&](sg::nccl::Gpus gpus, int process) -> std::string {
    // As many groups, with other borders.
    Grouping policy = by(what == Differs::groups && process == 1 ? "bucket:250" : "bucket:120", 0);
    if (what == Differs::measured_steps) policy.measured_steps = process;
    if (what == Differs::renew_every) policy.renew_every = process;
    Case const c{"gpipe", made(sg::schedule::GPipe{}), 1, {2}, {0, 1}};
    return words_of([&] {
      auto train = placed(gpus, policy, c, options_with(false, false, 2));
      sg::run(train.step(upload(row_model::batch(0, 4, 4, true))));
    });
  });
  for (auto const& words : told) {
    CAPTURE(words);
    CHECK(has(words, what == Differs::groups ? "processes disagree on the groups of gradients"
                     : what == Differs::measured_steps
                         ? "processes disagree on AllReduce::measured_steps"
                         : "processes disagree on AllReduce::renew_every"));
  }
}
