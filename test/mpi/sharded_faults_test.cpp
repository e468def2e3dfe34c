// SPDX-License-Identifier: Apache-2.0
#include <stagger/mpi/processes.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include <stagger/collective/all_reduce.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/mpi/session.hpp>
#include <stagger/partition/cuts.hpp>

#include "catch.hpp"
#include "trap_model.hpp"

namespace sharded_faults_test {

// A process that falls silent while replicas hand each other what they have updated.

namespace sg = stagger;
namespace mpi = stagger::mpi;

namespace {

using mpi::detail::Commit;
using mpi::detail::Placement;

int messages_left = 0;  // that a process sends once it begins to hand over; 0: all
bool silent = false;

/// n processes of one rank each; `dead` gets as far as to send so many messages at the end.
/// @return  what each of the others makes of it, 1: the step; and whether that is to be
struct Outcome {
  std::vector<bool> done{};
  bool expected = false;
};

Outcome outcome_of(int n, int dead, int messages) {
  sg::Program program;
  program.training = true;
  program.computing = n;
  std::vector<int> process_of;
  for (int p = 0; p < n; ++p) process_of.push_back(p);
  std::vector<Commit> all(static_cast<std::size_t>(n));
  auto const at = [&](int p) -> Commit& { return all[static_cast<std::size_t>(p)]; };
  for (int p = 0; p < n; ++p) {
    at(p).load(program, Placement(process_of, n, p), true);
    at(p).begin_step();
    for (int rank = 0; rank < n; ++rank) static_cast<void>(at(p).voted());
    CHECK_FALSE(at(p).made());
  }
  std::vector<int> told_by_dead;  // in the order of its messages: first values, then its word
  for (int p = 1; p < n; ++p) told_by_dead.push_back((dead + p) % n);
  std::vector<bool> knows(static_cast<std::size_t>(n));
  for (int from = 0; from < n; ++from)
    for (int to = 0; to < n; ++to) {
      bool sent = true;
      for (int i = 0; from == dead && i < n - 1; ++i)
        if (told_by_dead[static_cast<std::size_t>(i)] == to) sent = i < messages;
      if (sent && at(to).voted()) knows[static_cast<std::size_t>(to)] = true;
    }
  for (int from = 0; from < n; ++from)
    for (int to = 0; to < n; ++to) {
      if (from == to || !knows[static_cast<std::size_t>(from)]) continue;
      bool sent = true;
      for (int i = 0; from == dead && i < n - 1; ++i)
        if (told_by_dead[static_cast<std::size_t>(i)] == to) sent = n - 1 + i < messages;
      if (sent) at(to).take(from);
    }
  bool ended = false;  // by one that lacks something, and tells the others
  for (int p = 0; p < n; ++p) ended = ended || (p != dead && !knows[static_cast<std::size_t>(p)]);
  Outcome outcome;
  for (int p = 0; p < n; ++p) {
    if (p == dead) continue;
    if (!ended && at(p).last() == dead) at(p).settle();
    outcome.done.push_back(at(p).made());
  }
  outcome.expected = messages >= n - 1;
  return outcome;
}

}  // namespace

TEST_CASE("mpi/Commit: whenever one process dies, the others take the step or none does", "[mpi]") {
  for (int n = 2; n <= 5; ++n)
    for (int dead = 0; dead < n; ++dead)
      for (int messages = 0; messages <= 2 * (n - 1); ++messages) {
        CAPTURE(n, dead, messages);
        auto const outcome = outcome_of(n, dead, messages);
        for (bool const done : outcome.done) CHECK(done == outcome.expected);
      }
}

TEST_CASE("mpi/Commit: of two that are silent none is left out", "[mpi]") {
  sg::Program program;
  program.training = true;
  program.computing = 4;
  Commit one;
  one.load(program, Placement({0, 1, 2, 3}, 4, 0), false);
  one.begin_step();
  for (int rank = 0; rank < 4; ++rank) static_cast<void>(one.voted());
  REQUIRE(one.in_doubt());
  CHECK(one.last() == -1);
  one.take(1);
  REQUIRE(one.in_doubt());
  CHECK(one.last() == -1);  // 2 and 3: settling would leave out one that may have ended the step
  one.take(3);
  CHECK(one.last() == 2);
  one.take(3);
  CHECK(one.in_doubt());
  one.take(2);
  CHECK(one.made());
  CHECK(one.last() == -1);
}

TEST_CASE("mpi/Commit: a process that runs no rank neither votes nor is waited for", "[mpi]") {
  sg::Program program;
  program.training = true;
  program.computing = 2;
  Commit works;
  works.load(program, Placement({0, 1}, 3, 0), false);
  works.begin_step();
  for (int rank = 0; rank < 2; ++rank) static_cast<void>(works.voted());
  CHECK(works.last() == 1);
  works.take(1);
  CHECK(works.made());
  Commit idle;
  idle.load(program, Placement({0, 1}, 3, 2), false);
  idle.begin_step();
  CHECK(idle.made());
  CHECK_FALSE(idle.in_doubt());
}

TEST_CASE("mpi/Ending: who has voted does not end the step alone, and each step begins anew",
          "[mpi]") {
  auto const failure = std::make_exception_ptr(sg::Error(sg::Errc::cancelled, "enough"));
  struct Status : sg::detail::StepStatus {
  } status;
  mpi::detail::Ending ending;
  ending.open();
  REQUIRE(ending.vote());
  ending.fail(status, failure);
  CHECK_FALSE(ending.failed());
  CHECK_FALSE(status.failed());
  ending.break_off(status, failure);
  CHECK(ending.failed());
  CHECK(status.failed());
  CHECK(ending.failure() == failure);
  CHECK_FALSE(ending.vote());
  ending.open();
  CHECK_FALSE(ending.failed());
  CHECK(ending.failure() == nullptr);
  CHECK(ending.vote());
}

TEST_CASE("mpi/Watch: a rank that has moved in another process ends the quiet here", "[mpi]") {
  using Clock = mpi::detail::Watch::Clock;
  mpi::detail::Watch watch;
  watch.load(Placement({0, 1}, 2, 0));
  watch.begin_step();
  auto const tell = [&](std::uint64_t position) {  // rank 1 stands there
    sg::ByteWriter out;
    out.add(std::uint32_t{1});
    out.add(position);
    while (watch.quiet_s() < 0.02) {
    }
    auto const told_at = Clock::now();
    sg::ByteReader in(out.data(), out.size());
    watch.read(in);
    double const quiet_s = watch.quiet_s();
    return quiet_s <= std::chrono::duration<double>(Clock::now() - told_at).count();
  };
  CHECK(tell(3));
  CHECK(tell(4));
  CHECK_FALSE(tell(4));
  CHECK_FALSE(tell(2));
}

// What MPI lets a program put before its functions.
extern "C" int MPI_Isend(void const* data, int count, MPI_Datatype type, int peer, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  if (messages_left != 0 && count == static_cast<int>(sizeof(mpi::detail::Envelope)) && tag == 0) {
    auto const what = static_cast<mpi::detail::Envelope const*>(data)->what;
    bool const begun =
        what == mpi::detail::notice_of_values || what == mpi::detail::notice_of_agreement;
    if (begun && --messages_left == 0) silent = true;
  }
  if (!silent) return PMPI_Isend(data, count, type, peer, tag, comm, request);
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

TEST_CASE("mpi/Processes: one that falls silent handing over its part leaves no part of a step",
          "[mpi]") {
  int processes = 0;
  int process = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  if (processes != 3) return;
  using namespace trap_model;
  sg::Options options{.deadline_s = 2};
  options.clip_norm = 0.5;
  options.replicas = {3};
  auto const made = [&](auto device) {
    return wide_stage().with(
        sg::partition::Cuts{}, RowSum{}, device, sg::optimizer::AdamW{}, options,
        sg::collective::AllReduce<sg::collective::grouping::Layerwise>{.shard_optimizer = true});
  };
  auto train = made(mpi::Processes{});
  auto alone = made(sg::host::Threads{1});
  sg::Batch<Numbers, Numbers> const batch{{{1, 2, 3}, {4, 5, 6}}, {{1, 2, 3}, {4, 5, 6}}};
  auto const same = [&] {
    train.gather_parameters();
    auto const a = train.parameters();
    auto const b = alone.parameters();
    for (std::size_t i = 0; i < a.size(); ++i) {
      CHECK(std::ranges::equal(a[i].value, b[i].value));
      for (std::size_t s = 0; s < 2; ++s) CHECK(std::ranges::equal(a[i].state[s], b[i].state[s]));
    }
    CHECK(train.steps() == alone.steps());
  };
  auto const both = [&] {
    sg::run(train.step(batch));
    sg::run(alone.step(batch));
    same();
  };
  both();
  // Its second message hands its part to the second of the others; its third says to the first of
  // them that it has everything.
  for (int const message : {2, 3}) {
    CAPTURE(message);
    MPI_Barrier(MPI_COMM_WORLD);
    if (process == 1) messages_left = message;
    std::string words;
    try {
      sg::run(train.step(batch));
      sg::run(alone.step(batch));
    } catch (sg::Error const& error) {
      words = error.what();
      CHECK(error.code() == sg::Errc::deadline);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    messages_left = 0;
    silent = false;
    CAPTURE(words);
    CHECK(words.empty() == (message == 3));
    if (message == 2)
      CHECK_THAT(words, Catch::Contains("no process said that it has all updated parameters; "
                                        "process 1 has not been heard of") &&
                            Catch::EndsWith("; parameters are those after step 1"));
    same();
    both();
  }
}

}  // namespace sharded_faults_test
