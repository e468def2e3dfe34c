// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/gpus.hpp>

#include "catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/gpus_cases.hpp"
#include "processes.hpp"

namespace processes_test {

using namespace gpus_model;
using namespace processes;

namespace {

constexpr Case cases[] = {{"1f1b", 4, 1, 6, 4},
                          {"zb-v", 2, 2, 5, 2},
                          {"chimera", 2, 1, 4, 2},
                          {"dualpipe", 4, 1, 8, 4},
                          {"interleaved", 2, 2, 4, 2}};

}  // namespace

TEST_CASE("nccl/Gpus: a rank in every process has the host's bits", "[nccl]") {
  bool const shapes_change = GENERATE(false, true);
  int number = 0;
  for (auto const& c : cases) {
    if (sanitized && number++ % 3 != 0) continue;
    CAPTURE(c.name, shapes_change);
    si::Session const session;
    si::jitter(3);
    si::in_progress_polls(1);
    astray = 0;
    auto host = on_host(c);
    auto const expected =
        expected_of(host, 3, [&](int s) { return batch(s, c.microbatches, shapes_change); });
    auto const data = batch(9, c.microbatches, shapes_change);
    auto const evaluated = sg::run(host.evaluate(data)).loss;

    auto const wrong = in_processes(c.gpus, a_process(), [&](sg::nccl::Gpus gpus, int) {
      std::string words;
      gpus.shapes_change = shapes_change;
      auto train = on_all(c, gpus);
      for (int s = 0; s < 3; ++s) {
        auto const own = batch(s, c.microbatches, shapes_change);
        words += expected.check(static_cast<std::size_t>(s), sg::run(train.step(own)));
      }
      words += expected.check_parameters(train);
      auto const last = batch(9, c.microbatches, shapes_change);
      if (sg::run(train.evaluate(last)).loss != evaluated) words += "evaluation ";
      return words;
    });
    for (auto const& words : wrong) CHECK(words == "");
    CHECK(astray == 0);
    CHECK(si::aborts() == 0);
  }
}

TEST_CASE("nccl/Gpus: traffic() of each process is what its ranks send on the host, also in graphs",
          "[nccl]") {
  using enum sg::TrafficKind;
  bool const capture = GENERATE(false, true);
  for (auto const& c : {cases[0], cases[2]}) {  // of which the second hands in gradients
    CAPTURE(c.name, capture);
    si::Session const session;
    auto host = on_host(c);
    for (int s = 0; s < 5; ++s) sg::run(host.step(batch(s, c.microbatches, false)));
    auto const expected = host.traffic();
    auto const wrong = in_processes(c.gpus, a_process(), [&](sg::nccl::Gpus gpus, int p) {
      gpus.capture = capture;
      auto train = on_all(c, gpus);
      for (int s = 0; s < 5; ++s) sg::run(train.step(batch(s, c.microbatches, false)));
      auto const found = train.traffic();
      std::string words;
      for (int rank = 0; rank < train.ranks(); ++rank) {
        bool const own = rank == p;
        for (auto const kind : {activations, gradients}) {
          std::uint64_t const messages = own ? expected.of(rank, kind).messages : 0;
          if (found.of(rank, kind) != sg::TrafficCount{messages, messages * 3 * width * 4})
            words +=
                sg::text(sg::name(kind), " of rank ", rank, ": ", found.of(rank, kind).messages,
                         " messages, ", found.of(rank, kind).bytes, " bytes; ");
        }
        auto const sums = found.of(rank, gradient_sums);  // with the gaps between parameters
        auto const on_the_host = own ? expected.of(rank, gradient_sums) : sg::TrafficCount{};
        if ((sums.messages == 0) != (on_the_host.messages == 0) || sums.bytes < on_the_host.bytes)
          words += sg::text("sums of rank ", rank, "; ");
      }
      return words;
    });
    for (auto const& words : wrong) CHECK(words == "");
  }
}

TEST_CASE("nccl/Gpus: processes that are given different batches find out in the first step",
          "[nccl]") {
  for (bool const targets : {false, true}) {
    si::Session const session;
    auto const run = [&](sg::nccl::Gpus const& of) {
      return in_processes(three.gpus, of, [&](sg::nccl::Gpus gpus, int p) {
        auto train = on_all(three, gpus);
        auto const data = batch(0, three.microbatches, false);
        auto const later = batch(1, three.microbatches, false);
        auto other = data;
        if (p == 1)
          (targets ? other.targets : other.inputs)[1] = (targets ? later.targets : later.inputs)[1];
        auto words = words_of([&] { static_cast<void>(sg::run(train.step(other))); });
        static_cast<void>(sg::run(train.step(data)));  // as if the other had never been asked for
        if (train.steps() != (words.empty() ? 2 : 1))
          words += sg::text(" after step ", train.steps());
        return words;
      });
    };
    for (auto const& words : run(a_process())) {
      INFO(words);
      CHECK(words.find(targets ? "ranks disagree on the targets of the step: rank 0 has"
                               : "ranks disagree on the inputs of the step: rank 0 has") == 0);
      CHECK(
          words.find(
              "with the rows of all replicas, of which each takes its own, or turn this check off "
              "with nccl::Gpus::check_batches") != std::string::npos);
      CHECK(words.find(" after step ") == std::string::npos);
    }
    auto unchecked = a_process();
    unchecked.check_batches = false;
    for (auto const& words : run(unchecked)) CHECK(words == "");
  }
}

TEST_CASE("nccl/Gpus: a launcher may show each process a GPU of its own, as number 0", "[nccl]") {
  si::Session const session;
  si::Machine machine;
  machine.devices = 1;
  si::set_machine(machine);
  sg::nccl::Gpus gpus;
  gpus.launch.emplace();
  gpus.launch->launcher = "Slurm";
  gpus.launch->local_rank = 3;
  CHECK(words_of([&] { static_cast<void>(gpus.open(1, 60)); }) == "");
}

}  // namespace processes_test
