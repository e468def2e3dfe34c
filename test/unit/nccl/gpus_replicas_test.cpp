// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/gpus.hpp>

#include "catch.hpp"

#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>

#include "cuda/replica_cases.hpp"
#include "processes.hpp"

namespace gpus_replicas_test {

using namespace replica_cases;
using namespace processes;

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
    auto host = on_the_host(c, clipping());
    std::vector<double> losses;
    for (int s = 0; s < steps; ++s)
      losses.push_back(sg::run(host.step(row_model::batch(s, 4, c.rows, false))).loss);
    auto const expected = bits(host);
    std::atomic<int> exact{0};
    std::vector<std::vector<std::byte>> found(static_cast<std::size_t>(gpus_of(c.place)));
    auto const wrong = in_processes(gpus_of(c.place), a_process(), [&](sg::nccl::Gpus gpus, int p) {
      auto policy = by("layerwise", 0);
      policy.by = By::library;
      auto train = placed(gpus, policy, c, clipping());
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
    auto host = on_the_host(c, clipping());
    auto const expected = expected_of(host, steps, [&](int s) {
      return row_model::batch(s, microbatches, c.rows, shapes_change);
    });
    auto const wrong = in_processes(gpus_of(c.place), a_process(), [&](sg::nccl::Gpus gpus, int) {
      std::string words;
      gpus.shapes_change = shapes_change;
      auto train = placed(gpus, by("optimal", steps == 3 ? 0 : 2), c, clipping());
      for (int s = 0; s < steps; ++s) {
        auto const own = upload(row_model::batch(s, microbatches, c.rows, shapes_change));
        words += expected.check(static_cast<std::size_t>(s), sg::run(train.step(own)));
      }
      static_cast<void>(train.parameters());  // those of other processes are old
      words += expected.check_parameters(train);
      return words;
    });
    for (auto const& words : wrong) CHECK(words == "");
    CHECK(astray == 0);
  }
}

TEST_CASE("nccl/GroupSums: replicas that share the optimizer's state out have the host's bits",
          "[nccl]") {
  auto all = cases();
  for (int const count : {2, 3, 4}) all.push_back(replicated(count));
  int number = 0;
  for (auto const& c : all) {
    if (number++ % (sanitized ? 4 : 2) != 1) continue;
    CAPTURE(c.name, c.place.size());
    si::Session const session;
    si::set_machine({.devices = 8});
    si::jitter(3);
    si::in_progress_polls(1);
    astray = 0;
    auto host = on_the_host(c, clipping());
    auto const batch_of = [&](int s) { return row_model::batch(s, 4, c.rows, true); };
    int const steps = number % 4 == 0 ? 3 : 8;  // some while the groups are being decided
    auto const expected = expected_of(host, steps, batch_of);
    double const evaluated = sg::run(host.evaluate(batch_of(9))).loss;
    auto const wrong = in_processes(gpus_of(c.place), a_process(), [&](sg::nccl::Gpus gpus, int) {
      std::string words;
      gpus.shapes_change = true;
      auto train = placed(gpus, by("optimal", steps == 3 ? 0 : 2, true), c, clipping());
      for (int s = 0; s < steps; ++s) {
        if (s == 2) {
          train.gather_parameters();
          static_cast<void>(train.parameters());
        }
        auto const own = upload(batch_of(s));
        words += expected.check(static_cast<std::size_t>(s), sg::run(train.step(own)));
      }
      auto const more = upload(batch_of(9));
      if (sg::run(train.evaluate(more)).loss != evaluated) words += "evaluation ";
      static_cast<void>(train.parameters());
      words += expected.check_parameters(train);
      return words;
    });
    for (auto const& words : wrong) CHECK(words == "");
    CHECK(astray == 0);
  }
}

namespace {

/// @param outputs  of one row each before the prediction
/// @return what is wrong with what a process has predicted by the machine's program
std::string check_outputs(sg::detail::Machine const& machine, std::vector<int> const& place,
                          int process, std::vector<Values> const& outputs,
                          std::vector<Matrix> const& expected) {
  auto const& program = machine.program();
  std::vector<bool> here(outputs.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r)
    for (auto const& in : program.ranks[r].code)
      if (gives_output(in.op) && program.cells[in.cell].last() && place[r] == process)
        here[in.microbatch] = true;
  std::string words;
  for (std::size_t m = 0; m < outputs.size(); ++m) {
    if (here[m]) {
      auto const got = load<Matrix>(bare(outputs[m]));
      if (got.size() != expected[m].size() ||
          !std::equal(got.data(), got.data() + got.size(), expected[m].data()))
        words += sg::text("output ", m, " ");
    } else if (outputs[m].size() != width) {
      words += sg::text("output ", m, " of others ");
    }
  }
  return words;
}

/// A tensor in a type that processes cannot send.
struct Kept : Values {};
struct Leave {
  using Input = Values;
  using Output = Kept;
  void forward(sg::Context&, Values const& x, Kept& y, sg::NothingSaved&) {
    y.resize_rows(x, x.extent(0));
  }
  void backward(sg::Context&, Values const&, Kept const&, Values&, sg::NothingSaved&) {}
};

}  // namespace

TEST_CASE("nccl/Gpus: processes that run the last stage have the rows that all replicas predict",
          "[nccl]") {
  bool const shapes_change = GENERATE(false, true);
  auto all = cases();
  std::size_t const that_train = all.size();
  all.push_back({"two of three in a process", made(sg::schedule::GPipe{}), 1, {3}, {0, 0, 1}, 6});
  all.push_back({"all in one process", made(sg::schedule::OneFOneB{}), 2, {1, 2}, {0, 1, 1}});
  for (std::size_t number = 0; number < all.size(); ++number) {
    auto const& c = all[number];
    if (sanitized && number % 3 != 2) continue;
    CAPTURE(c.name, shapes_change);
    si::Session const session;
    si::set_machine({.devices = 8});
    si::jitter(3);
    si::in_progress_polls(1);
    astray = 0;
    constexpr std::size_t microbatches = 5;  // others than in training
    constexpr int times = 3;
    auto const asked = [&](int t) {
      return row_model::batch(9 + t, static_cast<int>(microbatches), c.rows, shapes_change);
    };
    auto const trained = row_model::batch(0, 4, c.rows, shapes_change);
    auto host = on_the_host(c, clipping());
    bool const trains = number < that_train;
    bool const trains_before = trains && number % 2 == 0;
    if (trains_before) sg::run(host.step(trained));
    std::vector<std::vector<Matrix>> expected;
    for (int t = 0; t < times; ++t)
      sg::run(host.predict(asked(t).inputs, expected.emplace_back(microbatches)));
    if (trains) sg::run(host.step(trained));
    auto const parameters = bits(host);
    auto const wrong = in_processes(gpus_of(c.place), a_process(), [&](sg::nccl::Gpus gpus, int p) {
      gpus.shapes_change = shapes_change;
      auto train = placed(gpus, by("single", 0), c, clipping());
      if (trains_before) sg::run(train.step(upload(trained)));
      std::string words;
      std::vector<BatchThere> inputs;
      std::vector<std::vector<Values>> outputs;
      for (int t = 0; t < times; ++t) {
        inputs.push_back(upload(asked(t)));
        outputs.emplace_back(microbatches);
        for (Values& output : outputs.back()) output.resize({1, width});
      }
      sg::run(train.predict(inputs[0].inputs, outputs[0]));
      words += check_outputs(train.machine(), c.place, p, outputs[0], expected[0]);
      auto second = sg::enqueue(train.predict(inputs[1].inputs, outputs[1]));
      auto third = sg::enqueue(train.predict(inputs[2].inputs, outputs[2]));
      second.wait();
      third.wait();
      for (std::size_t t = 1; t < outputs.size(); ++t)
        words += check_outputs(train.machine(), c.place, p, outputs[t], expected[t]);
      if (!trains) return words;
      sg::run(train.step(upload(trained)));
      train.gather_parameters();
      if (bits(train) != parameters) words += "parameters ";
      return words;
    });
    for (auto const& words : wrong) CHECK(words == "");
    CHECK(astray == 0);
  }
}

TEST_CASE("nccl/Gpus: predictions of replicas that cannot be sent are refused before a step",
          "[nccl]") {
  si::Session const session;
  auto const wrong = in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int) {
    auto run = sg::Pipeline{Leave{}}.with(gpus, sg::Options{.replicas = {2}});
    std::vector<Values> inputs(1);
    inputs[0].resize({2, width});
    std::vector<Kept> outputs(1);
    std::string words;
    for (int again = 0; again < 2; ++again)
      if (!has(words_of([&] { sg::run(run.predict(inputs, outputs)); }),
               "the output of layer 0 cannot go to another GPU; make it a cuda::Tensor"))
        words += "not refused ";
    return words;
  });
  for (auto const& words : wrong) CHECK(words == "");
}

TEST_CASE("nccl/GroupSums: momentum is shared out with sums by NCCL, too", "[nccl]") {
  sg::optimizer::Sgd const rule{.rate = 0.05, .momentum = 0.9};
  for (int const count : {2, 3, 4}) {
    CAPTURE(count);
    si::Session const session;
    auto const c = replicated(count);
    std::vector<std::vector<std::byte>> found[2];
    for (bool const shards : {false, true}) {
      found[shards].resize(static_cast<std::size_t>(count));
      auto const wrong = in_processes(count, a_process(), [&](sg::nccl::Gpus gpus, int p) {
        auto policy = by("layerwise", 0, shards);
        policy.by = sg::collective::By::library;
        auto train = placed(gpus, policy, c, clipping(), rule);
        for (int s = 0; s < 3; ++s) sg::run(train.step(upload(batch_of(s))));
        train.gather_parameters();
        found[shards][static_cast<std::size_t>(p)] = bits(train);
        return std::string();
      });
      for (auto const& words : wrong) CHECK(words == "");
    }
    CHECK((found[true] == found[false]));
  }
}

TEST_CASE("nccl/GroupSums: each process has, and sends, the parts that it updates", "[nccl]") {
  bool const clips = GENERATE(false, true);
  for (int const count : {2, 3, 4}) {
    CAPTURE(count, clips);
    si::Session const session;
    auto const c = replicated(count);
    auto options = options_with(clips);
    if (!clips) options.non_finite = sg::NonFinite::ignore;
    auto const parts = static_cast<std::size_t>(count);
    auto const wrong = in_processes(count, a_process(), [&](sg::nccl::Gpus gpus, int p) {
      auto train = placed(gpus, by("layerwise", 0, true), c, options);
      for (int s = 0; s < 2; ++s) sg::run(train.step(upload(batch_of(s))));
      auto const own = static_cast<std::size_t>(p);
      sg::TrafficCount sums;    // in two steps
      sg::TrafficCount values;  // likewise
      std::uint64_t states = 0;
      for (auto const& layer : train.machine().parameters()) {
        std::uint64_t const here = layer.part(own, parts).size();
        states += 2 * here;
        for (std::size_t other = 0; other < parts; ++other) {
          std::uint64_t const there = layer.part(other, parts).size();
          if (other != own && there != 0) sums += {2, 2 * there};
          if (other != own && here != 0) values += {2, 2 * here};
        }
        // The first one adds up the squares of whole sums.
        if (clips && own != 0 && here != 0) sums += {2, 2 * here};
      }
      std::string words;
      if (train.memory().optimizer_state != states) words += "states ";
      auto const traffic = train.traffic();
      if (traffic.of(p, sg::TrafficKind::gradient_sums) != sums) words += "sums ";
      if (traffic.of(p, sg::TrafficKind::parameters) != values) words += "values ";
      if (traffic.of(sg::TrafficKind::parameters) != values) words += "of others ";
      return words;
    });
    for (auto const& words : wrong) CHECK(words == "");
  }
}

TEST_CASE("nccl/GroupSums: shared out state goes on from what processes have restored", "[nccl]") {
  si::Session const session;
  si::set_machine({.devices = 8});
  auto const three = replicated(3);
  Case const four{"four", made(sg::schedule::OneFOneB{}), 2, {2, 2}, {0, 1, 2, 3}};
  auto host = on_the_host(three, clipping());
  for (int s = 0; s < 2; ++s) sg::run(host.step(batch_of(s)));
  auto next = on_the_host(four, clipping());
  copy_parameters(host, next);
  next.resume(2);
  auto const expected = expected_of(next, 2, [](int s) { return batch_of(2 + s); });
  std::vector<sg::ParameterState> const checkpoint = host.parameters();
  auto const wrong = in_processes(4, a_process(), [&](sg::nccl::Gpus gpus, int) {
    auto train = placed(gpus, by("single", 0, true), four, clipping());
    auto const to = train.parameters();
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::copy(checkpoint[i].value.begin(), checkpoint[i].value.end(), to[i].value.begin());
      for (std::size_t k = 0; k < 2; ++k)
        std::copy(checkpoint[i].state[k].begin(), checkpoint[i].state[k].end(),
                  to[i].state[k].begin());
    }
    train.resume(2);
    std::string words;
    for (int s = 0; s < 2; ++s)
      words +=
          expected.check(static_cast<std::size_t>(s), sg::run(train.step(upload(batch_of(2 + s)))));
    return words + expected.check_parameters(train);
  });
  for (auto const& words : wrong) CHECK(words == "");
}

TEST_CASE("nccl/GroupSums: one that shares out its optimizer and one that does not do not train",
          "[nccl]") {
  si::Session const session;
  auto const wrong = in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int p) {
    return words_of([&] {
      static_cast<void>(placed(gpus, by("single", 0, p == 0), replicated(2), clipping()));
    });
  });
  for (auto const& words : wrong) CHECK(has(words, "ranks disagree on AllReduce::shard_optimizer"));
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
    auto host = on_the_host(c, clipping());
    for (int s = 0; s < 8; ++s) sg::run(host.step(row_model::batch(s % 2, 4, c.rows, false)));
    auto const expected = bits(host);
    for (bool const shards : {false, true}) {
      auto const wrong = in_processes(gpus_of(c.place), a_process(), [&](sg::nccl::Gpus gpus, int) {
        return words_after_replays(gpus, c, decides, expected, shards);
      });
      for (auto const& words : wrong) CHECK(words == "");
    }
  }
}

TEST_CASE("nccl/GroupSums: an asynchronous error of a group ends the step before any update",
          "[nccl]") {
  si::Session const session;
  std::barrier all(4);
  std::atomic<int> told{0};
  auto const wrong = in_processes(4, a_process(), [&](sg::nccl::Gpus gpus, int p) -> std::string {
    auto train = placed(gpus, by("layerwise", 0), uneven(), clipping());
    auto const data = upload(batch_of(0));
    sg::run(train.step(data));
    auto const before = bits(train);
    all.arrive_and_wait();
    if (p == 0) si::break_communicators(1, 2, ncclRemoteError);
    all.arrive_and_wait();
    auto const words = words_of([&] { sg::run(train.step(data)); });
    if (has(words, "an injected error")) ++told;
    all.arrive_and_wait();
    if (words.empty()) return "no error";
    if (bits(train) != before) return "parameters";
    auto const next = words_of([&] { sg::run(train.step(data)); });
    return has(next, "lost in an earlier step") ? "" : next;
  });
  for (auto const& words : wrong) CHECK(words == "");
  CHECK(told > 0);
}

TEST_CASE("nccl/GroupSums: a process that does not come to a sum is an error in time", "[nccl]") {
  si::Session const session;
  std::atomic<bool> over_now{false};
  Case const c{"gpipe", made(sg::schedule::GPipe{}), 1, {2}, {0, 1}};
  auto const wrong = in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int p) {
    auto const options = clipping(p == 0 ? 0.5 : 60);
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

TEST_CASE("nccl/GroupSums: what cannot be run is refused in one sentence", "[nccl]") {
  si::Session const session;
  auto const wrong = in_processes(4, a_process(), [&](sg::nccl::Gpus gpus, int p) {
    auto own = uneven();
    if (p == 3) own.replicas = {{1, 3}, {1, 1}};
    return words_of([&] { static_cast<void>(placed(gpus, by("single", 0), own, clipping())); });
  });
  CHECK(has(wrong[0], "ranks disagree on the shares of Options::replicas"));
  auto const in_groups = [&](int group) {
    return words_of([&] {
      static_cast<void>(sg::Pipeline{layers_there()}.with(
          sg::partition::LayerSplit{.group = group}, LossThere{},
          sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, a_process(),
          sg::Options{.replicas = {2}}));
    });
  };
  CHECK(in_groups(1).empty());
  CHECK(has(in_groups(2), "this device cannot run groups of ranks that share layers"));
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
  auto const told =
      in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int process) -> std::string {
        // As many groups, with other borders.
        Grouping policy =
            by(what == Differs::groups && process == 1 ? "bucket:250" : "bucket:120", 0);
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
    CHECK(has(words, what == Differs::groups ? "ranks disagree on the groups of gradients"
                     : what == Differs::measured_steps
                         ? "ranks disagree on AllReduce::measured_steps"
                         : "ranks disagree on AllReduce::renew_every"));
  }
}

}  // namespace gpus_replicas_test
