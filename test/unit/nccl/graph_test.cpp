// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/gpus.hpp>

#include "catch.hpp"

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/gpus_cases.hpp"
#include "processes.hpp"

using namespace gpus_model;
using namespace processes;

namespace {

sg::nccl::Gpus captured(sg::nccl::Gpus gpus, int ahead, sg::cuda::GraphCounts* counts = nullptr) {
  gpus.ahead = ahead;
  gpus.capture = true;
  gpus.counts = counts;
  return gpus;
}

auto on_host(Case const& c) {
  return sg::Pipeline{model()}.with(sg::partition::Cuts{even_cuts(c.ranks * c.chunks)},
                                    schedule_of(c), Loss{}, optimizer(), sg::host::Threads{1},
                                    clipping());
}
auto on_all(Case const& c, sg::nccl::Gpus gpus, double deadline_s = 60) {
  return over(std::move(gpus), optimizer(), even_cuts(c.ranks * c.chunks), schedule_of(c),
              clipping(deadline_s));
}

}  // namespace

TEST_CASE("nccl/Gpus: processes record and replay together, whoever's batch has changed",
          "[nccl]") {
  int number = 0;
  for (Case const& c :
       {Case{"1f1b", 4, 1, 6, 4}, Case{"chimera", 2, 1, 4, 2}, Case{"zb-v", 2, 2, 5, 2}}) {
    if (sanitized && number++ != 1) continue;
    CAPTURE(c.name);
    si::Session const session;
    si::jitter(3);
    si::in_progress_polls(1);
    auto host = on_host(c);
    auto const data = batches(4, c.microbatches, false);
    std::vector<sg::Metrics> expected;
    for (int s = 0; s < 8; ++s) {
      expected.push_back(sg::run(host.step(data[static_cast<std::size_t>(s) / 2])));
    }
    auto const after = bits(host);
    auto const wrong =
        in_processes(c.gpus, a_process(), [&](sg::nccl::Gpus gpus, int process) -> std::string {
          sg::cuda::GraphCounts counts;
          auto train = on_all(c, captured(gpus, 1, &counts));
          std::string words;
          for (int s = 0; s < 8; ++s) {
            auto const& one = data[static_cast<std::size_t>(s) / 2];
            // Every second step of process 1 has the same objects as the one before, of others not.
            auto const own = process == 1 ? Batch{} : one;
            auto const got = sg::run(train.step(process == 1 ? one : own));
            auto const& want = expected[static_cast<std::size_t>(s)];
            if (got.loss != want.loss) words += "loss ";
            if (got.gradient_norm != want.gradient_norm) words += "norm ";
          }
          train.gather_parameters();
          if (bits(train) != after) words += "parameters ";
          if (counts.replays != 7) words += "replays ";
          if (counts.captures < 4) words += "captures ";
          return words;
        });
    for (auto const& words : wrong) CHECK(words == "");
    CHECK(si::aborts() == 0);
    std::vector<std::uint64_t> captures(static_cast<std::size_t>(c.gpus));
    auto const failed =
        in_processes(c.gpus, a_process(), [&](sg::nccl::Gpus gpus, int process) -> std::string {
          sg::cuda::GraphCounts counts;
          auto train = on_all(c, captured(gpus, 2, &counts));
          std::vector<sg::Ticket> tickets;
          auto const all = batches(12, c.microbatches, false);
          for (std::size_t s = 0; s < all.size(); ++s)  // process 0 alone has a new one at step 8
            tickets.push_back(sg::enqueue(train.step(all[process == 0 && s == 8 ? 8 : s % 2])));
          train.settle();
          captures[static_cast<std::size_t>(process)] = counts.captures;
          return {};
        });
    for (auto const& words : failed) CHECK(words == "");
    for (auto const count : captures) CHECK(count == 4);  // two turns; step 8, and its turn again
  }
}

TEST_CASE("nccl/Gpus: a process that stops replaying is an error in time, and abort may hang",
          "[nccl]") {
  bool const hangs = GENERATE(false, true);
  si::Session const session;
  auto const data = batches(4, 3, false);
  auto const course = expected_course(data, true);
  std::atomic<bool> other_is_done{false};
  auto const wrong =
      in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int process) -> std::string {
        auto train = on_all({"gpipe", 2, 1, 3, 2}, captured(gpus, 2), process == 0 ? 0.5 : 60);
        std::string words;
        std::vector<sg::Ticket> tickets;
        for (std::size_t s = 0; s < 3; ++s) tickets.push_back(sg::enqueue(train.step(data[s])));
        train.settle();
        for (std::size_t s = 0; s < 3; ++s)
          if (tickets[s].metrics().loss != course.loss[s]) words += "loss ";
        if (process == 1) {
          other_is_done = true;
          other_is_done.notify_all();
          return words;  // and takes no fourth step
        }
        si::abort_hangs(hangs);
        auto const told = words_of([&] { sg::run(train.step(data[3])); });
        if (!has(told, "0.5 s")) words += "told: " + told;
        if (!has(words_of([&] { sg::run(train.step(data[3])); }), "lost in an earlier step"))
          words += "next ";
        other_is_done.wait(false);
        if (hangs) si::lose_device(cudaErrorIllegalAddress);  // what it still has is not run
        si::abort_hangs(false);
        return words;
      });
  for (auto const& words : wrong) CHECK(words == "");
}

TEST_CASE("nccl/Gpus: shapes that change are told to other processes, which no graph can",
          "[nccl]") {
  si::Session const session;
  auto const wrong = in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int) -> std::string {
    gpus.shapes_change = true;
    auto train = on_all({"gpipe", 2, 1, 3, 2}, gpus);
    auto const words = words_of([&] { train.capture(); });
    return has(words, "which a graph cannot") ? "" : words + " was said";
  });
  for (auto const& words : wrong) CHECK(words == "");
}
