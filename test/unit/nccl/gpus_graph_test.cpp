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

namespace gpus_graph_test {

using namespace gpus_model;
using namespace processes;

TEST_CASE("nccl/Gpus: processes record and replay together, whichever one's batch has changed",
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
    auto const expected = expected_of(
        host, 8, [&](int s) -> auto const& { return data[static_cast<std::size_t>(s) / 2]; });
    auto const wrong =
        in_processes(c.gpus, a_process(), [&](sg::nccl::Gpus gpus, int process) -> std::string {
          sg::cuda::GraphCounts counts;
          auto train = on_all(c, captured(gpus, 1, &counts));
          std::string words;
          for (int s = 0; s < 8; ++s) {
            auto const& one = data[static_cast<std::size_t>(s) / 2];
            // Every second step of process 1 has the same objects as the one before, of others not.
            auto const own = process == 1 ? Batch{} : one;
            words += expected.check(static_cast<std::size_t>(s),
                                    sg::run(train.step(process == 1 ? one : own)));
          }
          words += expected.check_parameters(train);
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
    for (auto const count : captures) CHECK(count == 4);  // two slots; step 8, and its slot again
  }
}

TEST_CASE("nccl/Gpus: a process that stops replaying is an error in time, and abort may hang",
          "[nccl]") {
  Departure departure(GENERATE(false, true));
  si::Session const session;
  auto const data = batches(4, 3, false);
  auto const course = expected_course(data, true);
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
          departure.leave();
          return words;  // and takes no fourth step
        }
        departure.begin();
        auto const told = words_of([&] { sg::run(train.step(data[3])); });
        if (!has(told, "0.5 s")) words += "told: " + told;
        if (!has(words_of([&] { sg::run(train.step(data[3])); }), "lost in an earlier step"))
          words += "next ";
        departure.end();
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

}  // namespace gpus_graph_test
