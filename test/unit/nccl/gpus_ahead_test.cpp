// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/gpus.hpp>

#include "catch.hpp"

#include <atomic>
#include <barrier>
#include <optional>
#include <string>
#include <vector>

#include "cuda/gpus_cases.hpp"
#include "cuda/not_finite_model.hpp"
#include "processes.hpp"

namespace gpus_ahead_test {

using namespace gpus_model;
using namespace processes;

TEST_CASE("nccl/Gpus: processes run ahead, each for itself, with the host's bits", "[nccl]") {
  int number = 0;
  for (Case const& c :
       {Case{"1f1b", 4, 1, 6, 4}, Case{"chimera", 2, 1, 4, 2}, Case{"zb-v", 2, 2, 5, 2}}) {
    if (sanitized && number++ != 1) continue;
    CAPTURE(c.name);
    si::Session const session;
    si::jitter(3);
    si::in_progress_polls(1);
    auto const data = batches(7, c.microbatches, false);
    auto host = on_host(c);
    auto const expected = expected_of(
        host, 7, [&](int s) -> auto const& { return data[static_cast<std::size_t>(s)]; });
    auto const wrong =
        in_processes(c.gpus, a_process(), [&](sg::nccl::Gpus gpus, int) -> std::string {
          auto train = on_all(c, ahead(gpus, 2));
          std::string words;
          std::vector<sg::Ticket> tickets;
          for (auto const& one : data) tickets.push_back(sg::enqueue(train.step(one)));
          words += expected.check_parameters(train);  // waits by itself
          for (std::size_t s = 0; s < data.size(); ++s)
            words += expected.check(s, tickets[s].metrics());
          return words;
        });
    for (auto const& words : wrong) CHECK(words == "");
  }
}

TEST_CASE("nccl/Gpus: a process that ends while steps are in flight is told by their tickets",
          "[nccl]") {
  Departure departure(GENERATE(false, true));
  si::Session const session;
  auto const data = batches(4, 3, false);
  auto const course = expected_course(data, true);
  auto const wrong =
      in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int process) -> std::string {
        auto train = on_all({"gpipe", 2, 1, 3, 2}, ahead(gpus, 2), process == 0 ? 0.5 : 60);
        std::string words;
        auto first = sg::enqueue(train.step(data[0]));
        auto second = sg::enqueue(train.step(data[1]));
        if (process == 1) {
          if (first.metrics().loss != course.loss[0]) words += "first ";
          if (second.metrics().loss != course.loss[1]) words += "second ";
          train.settle();
          departure.leave();
          return words;  // and takes no third step
        }
        train.settle();
        departure.begin();
        std::optional<sg::Ticket> third;
        auto const told = words_of([&] {
          third = sg::enqueue(train.step(data[2]));
          third->metrics();
        });
        if (!has(told, "did not move for 0.5 s") && !has(told, "waited 0.5 s to") &&
            !has(told, "aborted"))
          words += "told: " + told;
        if (first.metrics().loss != course.loss[0]) words += "first ";
        if (!has(words_of([&] { sg::run(train.step(data[3])); }), "lost in an earlier step"))
          words += "next ";
        departure.end();
        return words;
      });
  for (auto const& words : wrong) CHECK(words == "");
}

TEST_CASE("nccl/Gpus: an error of NCCL in flight is told by the ticket, also of a replayed step",
          "[nccl]") {
  bool const capture = GENERATE(false, true);
  si::Session const session;
  auto const data = batches(3, 3, false);
  LetGo const let_go;
  std::barrier all(3);
  std::atomic<int> told{0};
  auto const wrong = in_processes(3, a_process(), [&](sg::nccl::Gpus gpus, int p) -> std::string {
    gpus.capture = capture;
    auto train = on_all(three, ahead(gpus, 2));
    for (auto const& one : data) sg::run(train.step(one));
    all.arrive_and_wait();
    if (p == 0) hold_from(3);
    all.arrive_and_wait();
    auto ticket = sg::enqueue(train.step(data[0]));
    all.arrive_and_wait();
    if (p == 0) {
      si::break_communicators(1, 2, ncclRemoteError);
      hold_from(100);
    }
    auto const words = words_of([&] { ticket.metrics(); });
    if (has(words, "an injected error")) ++told;
    all.arrive_and_wait();
    if (!has(words, "step 4: ")) return "told: " + words;
    if (words_of([&] { static_cast<void>(train.parameters()); }).empty()) return "parameters";
    return "";
  });
  for (auto const& words : wrong) CHECK(words == "");
  CHECK(told > 0);
}

TEST_CASE("nccl/NonFinite: all processes fail the same steps, whenever each of them sees it",
          "[nccl]") {
  not_finite_model::How how;
  how.capture = GENERATE(false, true);
  how.clips = GENERATE(false, true);
  how.two_owners = GENERATE(false, true);
  how.shards = how.two_owners && how.clips;
  how.ahead = 3;
  CAPTURE(how.capture, how.clips, how.two_owners);
  si::Session const session;
  si::jitter(5);
  auto const data = batches(8, not_finite_model::parts, false);
  not_finite_model::Calls none;
  auto host = on_host(how, sg::NonFinite::fail, &none);
  std::vector<double> expected;
  for (std::size_t const s : {0U, 1U, 5U, 6U, 7U})
    expected.push_back(sg::run(host.step(data[s])).loss);
  auto const parameters = bits(host);
  auto const wrong =
      in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int process) -> std::string {
        not_finite_model::Calls calls;
        // In the third step, in process 0: the other has this layer too, unless it never runs it.
        if (process == 0) calls.poisoned = 2 * not_finite_model::parts / (how.two_owners ? 2 : 1);
        auto train = on_device(gpus, how, sg::NonFinite::fail, &calls);
        std::vector<sg::Ticket> tickets;
        std::string words;
        for (auto const& one : data) {
          tickets.push_back(sg::enqueue(train.step(one)));
          if (process == 0) static_cast<void>(words_of([&] { tickets.back().metrics(); }));
        }
        std::vector<double> losses;
        for (std::size_t s = 0; s < data.size(); ++s) {
          auto const told = words_of([&] { losses.push_back(tickets[s].metrics().loss); });
          bool const fails = s >= 2 && s < 5;  // until the other, which is ahead, has seen it
          if (fails ? !has(told, "is not finite, so nothing was updated after step 2: ")
                    : !told.empty())
            words += std::to_string(s) + ": " + told + "; ";
        }
        if (losses != expected) words += "losses ";
        if (train.steps() != 5) words += "steps ";
        train.gather_parameters();
        if (bits(train) != parameters) words += "parameters ";
        return words;
      });
  for (auto const& words : wrong) CHECK(words == "");
}

TEST_CASE("nccl/NonFinite: after a second failure, all processes go on from the same step",
          "[nccl]") {
  not_finite_model::How how;
  how.capture = GENERATE(false, true);
  how.two_owners = GENERATE(false, true);
  how.shards = how.two_owners && how.capture;
  how.ahead = 3;
  CAPTURE(how.capture, how.two_owners);
  si::Session const session;
  auto const data = batches(10, not_finite_model::parts, false);
  not_finite_model::Calls none;
  auto host = on_host(how, sg::NonFinite::fail, &none);
  std::vector<double> expected;
  for (std::size_t const s : {0U, 1U, 8U, 9U}) expected.push_back(sg::run(host.step(data[s])).loss);
  auto const parameters = bits(host);
  auto const wrong =
      in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int process) -> std::string {
        not_finite_model::Calls calls;
        int const of_a_step = not_finite_model::parts / (how.two_owners ? 2 : 1);
        if (process == 0) {
          calls.poisoned = 2 * of_a_step;
          calls.again = 5 * of_a_step;
        }
        auto train = on_device(gpus, how, sg::NonFinite::fail, &calls);
        std::vector<sg::Ticket> tickets;
        std::string words;
        for (std::size_t s = 0; s < data.size(); ++s) {
          tickets.push_back(sg::enqueue(train.step(data[s])));
          // Process 0 alone sees the first failure at once, and begins three more steps before it
          // knows that two of them change nothing, since process 1 has not seen it.
          if (process == 0 && s == 2) static_cast<void>(words_of([&] { tickets[s].metrics(); }));
        }
        std::vector<double> losses;
        for (std::size_t s = 0; s < data.size(); ++s) {
          auto const told = words_of([&] { losses.push_back(tickets[s].metrics().loss); });
          bool const fails = s >= 2 && s < 8;
          if (fails ? !has(told, "is not finite, so nothing was updated after step 2: ")
                    : !told.empty())
            words += std::to_string(s) + ": " + told + "; ";
        }
        if (losses != expected) words += "losses ";
        if (train.steps() != 4) words += "steps " + std::to_string(train.steps()) + " ";
        train.gather_parameters();
        if (bits(train) != parameters) words += "parameters ";
        return words;
      });
  for (auto const& words : wrong) CHECK(words == "");
}

TEST_CASE("nccl/NonFinite: all processes skip the same step", "[nccl]") {
  not_finite_model::How how;
  how.capture = GENERATE(false, true);
  how.ahead = 3;
  si::Session const session;
  auto const data = batches(6, not_finite_model::parts, false);
  not_finite_model::Calls here;
  here.poisoned = 2 * not_finite_model::parts;
  auto host = on_host(how, sg::NonFinite::skip, &here);
  for (auto const& one : data) sg::run(host.step(one));
  auto const parameters = bits(host);
  auto const wrong =
      in_processes(2, a_process(), [&](sg::nccl::Gpus gpus, int process) -> std::string {
        not_finite_model::Calls calls;
        calls.poisoned = 2 * not_finite_model::parts;
        auto train = on_device(gpus, how, sg::NonFinite::skip, &calls);
        std::vector<sg::Ticket> tickets;
        std::string words;
        for (auto const& one : data) {
          tickets.push_back(sg::enqueue(train.step(one)));
          if (process == 0) tickets.back().wait();
        }
        for (std::size_t s = 0; s < data.size(); ++s)
          if (tickets[s].metrics().skipped != (s == 2 ? 1 : 0)) words += std::to_string(s) + " ";
        if (train.steps() != 5) words += "steps ";
        train.gather_parameters();
        if (bits(train) != parameters) words += "parameters ";
        return words;
      });
  for (auto const& words : wrong) CHECK(words == "");
}

}  // namespace gpus_ahead_test
