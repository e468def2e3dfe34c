// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/detail/group_sums.hpp>

#include "catch.hpp"

#include <string>
#include <vector>

#include <stagger/program/lay_out.hpp>

#include "cuda/replica_cases.hpp"

using namespace replica_cases;

namespace {

void same_as_on_the_host(Case const& c, Grouping policy, bool clips, bool recompute) {
  CAPTURE(c.name, clips, recompute);
  si::Session const session;
  si::set_machine({.devices = 8});
  si::jitter(7);
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

TEST_CASE("cuda/GroupSums: replicas on several GPUs have the host's bits", "[cuda]") {
  int number = 0;
  for (auto const& c : cases()) {
    if (sanitized && number++ % 3 != 0) continue;
    same_as_on_the_host(c, by("single", 0), true, false);
    same_as_on_the_host(c, by("layerwise", 0), false, true);
    same_as_on_the_host(c, by("optimal", 1), true, false);
  }
}

TEST_CASE("cuda/GroupSums: whatever CUDA refuses, parameters are those before or after", "[cuda]") {
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
  for (auto const call : {si::Call::launch_kernel, si::Call::event_record,
                          si::Call::stream_wait_event, si::Call::memcpy_async,
                          si::Call::memset_async, si::Call::set_device, si::Call::malloc_from_pool})
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
        si::fail(call, nth, cudaErrorLaunchFailure);
        bool const failed = !words_of([&] { step(1); }).empty();
        si::fail(si::Call::comm_init, 1, 0);  // no more of it
        step(failed ? 1 : 2);
        REQUIRE((bits(train) == course[failed ? 1 : 2]));
      }
      si::reset();
      REQUIRE(session.left() == si::Live{});
    }
}

TEST_CASE("cuda/GroupSums: after the first step nothing is made, allocated or awaited", "[cuda]") {
  si::Session const session;
  auto train = placed(on(4), by("layerwise", 0), uneven(), options_with(true));
  auto const data = upload(batch_of(0));
  auto const still = [] {
    using si::Call;
    std::uint64_t sum = 0;
    for (Call const call : {Call::event_create, Call::stream_create, Call::malloc,
                            Call::malloc_host, Call::malloc_from_pool, Call::pool_create,
                            Call::stream_synchronize, Call::memcpy, Call::memset})
      sum += si::calls(call);
    return sum;
  };
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  auto const before = still();
  for (int s = 0; s < 3; ++s) sg::run(train.step(data));
  CHECK(still() == before);
}

TEST_CASE("cuda/GroupSums: steps of another number of microbatches use the groups that stand",
          "[cuda]") {
  si::Session const session;
  auto const c = uneven();
  auto train = placed(on(4), by("layerwise", 0), c, options_with(true));
  auto const four = upload(row_model::batch(0, 4, c.rows, false));
  auto const three = upload(row_model::batch(1, 3, c.rows, false));
  sg::run(train.step(four));
  auto const standing = session.left().streams;
  for (int again = 0; again < 2; ++again) {
    sg::run(train.step(three));
    sg::run(train.step(four));
    CHECK(session.left().streams == standing);
  }
}

TEST_CASE("cuda/GroupSums: all groups but the last are issued before the last backward is",
          "[cuda]") {
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
    place.push_back(rank.reducer_for < 0 ? static_cast<int>(place.size()) : rank.reducer_for);
  sg::cuda::detail::Routes const routes(program, place);
  std::vector<std::size_t> first_sum(groups.size(), routes.order().size());
  std::vector<std::size_t> last_part(groups.size());
  for (std::size_t t = 0; t < routes.order().size(); ++t) {
    auto const& issue = routes.order()[t];
    auto const& in = program.ranks[issue.rank].code[issue.index];
    if (in.op == sg::Op::reduce) first_sum[in.group] = std::min(first_sum[in.group], t);
    if (in.op == sg::Op::backward_part) last_part[in.group] = t;
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    CHECK(first_sum[g] > last_part[g]);
    if (g % 3 == 0) CHECK(first_sum[g] < last_part[g + 2]);
  }
}

TEST_CASE("cuda/GroupSums: every replica goes on from what the host writes between steps",
          "[cuda]") {
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

TEST_CASE("cuda/GroupSums: sums of replicas become part of a graph, once the groups are decided",
          "[cuda]") {
  int number = 0;
  for (auto const& c : cases()) {
    if (number++ % (sanitized ? 4 : 2) != 1) continue;
    bool const decides = number % 4 == 0;
    CAPTURE(c.name, decides);
    si::Session const session;
    si::set_machine({.devices = 8});
    si::jitter(5);
    auto host = on_the_host(c, options_with(true));
    for (int s = 0; s < 8; ++s) sg::run(host.step(row_model::batch(s % 2, 4, c.rows, false)));
    CHECK(words_after_replays(on(gpus_of(c.place)), c, decides, bits(host)) == "");
  }
}

TEST_CASE("cuda/GroupSums: what cannot be run is refused in one sentence", "[cuda]") {
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
  auto policy = by("single", 0);
  policy.shard_optimizer = true;
  CHECK(
      has(words_of([&] { static_cast<void>(placed(on(4), policy, uneven(), options_with(true))); }),
          "does not share the optimizer's state out"));
  policy = by("single", 0);
  policy.by = sg::collective::By::library;
  CHECK(
      has(words_of([&] { static_cast<void>(placed(on(4), policy, uneven(), options_with(true))); }),
          "take collective::By::slices, or mpi::Processes or nccl::Gpus for the device"));
}
