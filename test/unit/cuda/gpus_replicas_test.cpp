// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/detail/group_sums.hpp>

#include "catch.hpp"

#include <string>
#include <vector>

#include <stagger/model/lamb.hpp>
#include <stagger/model/muon.hpp>
#include <stagger/program/lay_out.hpp>
#include <stagger/train/footprint.hpp>

#include "cuda/replica_cases.hpp"

namespace gpus_replicas_test {

using namespace replica_cases;

TEST_CASE("cuda/GroupSums: replicas on several GPUs have the host's bits", "[cuda]") {
  check_all_replicas(cases(), [](Case const& c) { return on(gpus_of(c.place)); });
}

namespace {

/// The host's update as a kernel, of rules for which the library has none.
struct LaunchOnHost {
  static constexpr bool asks_scale = true;
  template <class Rule, class T>
  cudaError_t operator()(sg::cuda::Update<Rule, T> const& update, cudaStream_t stream) const {
    return launch(stream, [u = update] {
      if (u.scale->updates()) u.rule->update(u.view, u.scale->factor, u.numbers->steps + u.number);
    });
  }
};

template <class Optimizer>
void check_whole_parameters(Case const& c, Optimizer const& update, bool clips, bool shards) {
  CAPTURE(c.name, clips, shards);
  si::Session const session;
  si::set_machine({.devices = 8});
  auto options = options_with(clips, false);
  options.seed = run_seed;
  options.replicas = c.replicas;
  auto const cuts = even_cuts(c.positions * c.schedule.each);
  auto host = sg::Pipeline{row_model::model()}.with(sg::partition::Cuts{cuts}, c.schedule, Loss{},
                                                    update, sg::host::Threads{1}, options);
  auto train = sg::Pipeline{layers_there()}.with(
      sg::partition::Cuts{cuts}, c.schedule, LossThere{},
      sg::cuda::Enqueued<Optimizer, LaunchOnHost>{update}, on(gpus_of(c.place)),
      by("layerwise", 0, shards), sg::placement::ExplicitMap{c.place}, options);
  for (int s = 0; s < 3; ++s) {
    auto const data = row_model::batch(s, 4, c.rows, true);
    sg::run(host.step(data));
    sg::run(train.step(upload(data)));
    REQUIRE((bits(train) == bits(host)));
  }
}

}  // namespace

TEST_CASE("cuda/GroupSums: optimizers of whole parameters have the host's bits on any GPUs",
          "[cuda]") {
  bool const shards = GENERATE(false, true);
  bool clips = shards;
  for (Case const& c : cases())
    check_whole_parameters(c, sg::optimizer::Lamb{}, clips = !clips, shards);
  check_whole_parameters(cases().back(), sg::optimizer::Muon{}, false, shards);
}

TEST_CASE("cuda/GroupSums: replicas that share the optimizer's state out have the host's bits",
          "[cuda]") {
  auto all = cases();
  all.push_back({"four", made(sg::schedule::OneFOneB{}), 2, {4, 1}, {0, 1, 2, 3, 4}, 8});
  check_all_replicas(all, [](Case const& c) { return on(gpus_of(c.place)); }, true);
}

TEST_CASE("cuda/GroupSums: momentum that is shared out has the host's bits", "[cuda]") {
  sg::optimizer::Sgd const rule{.rate = 0.05, .momentum = 0.9};
  for (int const count : {2, 3, 4}) {
    CAPTURE(count);
    si::Session const session;
    auto const c = replicated(count);
    auto options = clipping();
    options.replicas = c.replicas;
    auto host = sg::Pipeline{row_model::model()}.with(sg::partition::Cuts{}, c.schedule, Loss{},
                                                      rule, sg::host::Threads{1}, options);
    auto train = placed(on(count), by("layerwise", 0, true), c, clipping(), rule);
    for (int s = 0; s < 3; ++s) {
      sg::run(host.step(batch_of(s)));
      sg::run(train.step(upload(batch_of(s))));
      REQUIRE((bits(train) == bits(host)));
    }
  }
}

TEST_CASE("cuda/GroupSums: each GPU has the optimizer's state of the parts that it updates",
          "[cuda]") {
  for (int const count : {2, 3, 4}) {
    auto const c = replicated(count);
    struct Used {
      sg::Memory memory;
      sg::Memory predicted;
      std::vector<std::uint64_t> predicted_states, bytes;  // [GPUs]
    };
    auto const used = [&](bool shards) {
      si::Session const session;
      auto train = placed(on(count), by("layerwise", 0, shards), c, clipping());
      CHECK((train.memory().optimizer_state == 0) == shards);  // nobody knows who updates what
      for (int s = 0; s < 3; ++s) sg::run(train.step(upload(batch_of(s))));
      sg::Footprint footprint;
      for (auto const& layer : train.machine().parameters())
        footprint.layers.push_back({.parameters = layer.bytes_of_values()});
      Used result;
      result.memory = train.memory();
      for (int g = 0; g < count; ++g) {
        auto const here = sg::predicted_parameters(train.program(3), {}, 2, std::vector{g},
                                                   footprint, shards, true, false);
        result.predicted.parameters += here.parameters;
        result.predicted.optimizer_state += here.optimizer_state;
        result.predicted_states.push_back(here.optimizer_state);
        result.bytes.push_back(si::bytes_on(g));
      }
      CHECK(result.memory.parameters == result.predicted.parameters);
      CHECK(result.memory.optimizer_state == result.predicted.optimizer_state);
      return result;
    };
    auto const whole = used(false);
    auto const shared = used(true);
    CHECK(whole.memory.optimizer_state ==
          static_cast<std::uint64_t>(count) * shared.memory.optimizer_state);
    for (std::size_t g = 0; g < shared.bytes.size(); ++g) {
      CAPTURE(count, g);
      CHECK(whole.bytes[g] - shared.bytes[g] ==
            whole.predicted_states[g] - shared.predicted_states[g]);
    }
  }
}

TEST_CASE("cuda/GroupSums: replicas on one GPU have one copy of the optimizer's state", "[cuda]") {
  si::Session const session;
  auto c = replicated(3);
  c.place = {0, 0, 0};
  auto host = on_the_host(c, clipping());
  auto train = placed(on(1), by("layerwise", 0, true), c, clipping());
  for (int s = 0; s < 3; ++s) {
    sg::run(host.step(batch_of(s)));
    sg::run(train.step(upload(batch_of(s))));
  }
  CHECK((bits(train) == bits(host)));
  CHECK(train.memory().optimizer_state == host.memory().optimizer_state);
}

TEST_CASE("cuda/GroupSums: state that is shared out goes on from a checkpoint, with other replicas",
          "[cuda]") {
  si::Session const session;
  si::set_machine({.devices = 8});
  auto const four = replicated(4);
  Case const five{"five", made(sg::schedule::OneFOneB{}), 2, {2, 3}, {0, 1, 2, 3, 4}};
  auto first = placed(on(4), by("layerwise", 0, true), four, clipping());
  auto host = on_the_host(four, clipping());
  for (int s = 0; s < 2; ++s) {
    sg::run(first.step(upload(batch_of(s))));
    sg::run(host.step(batch_of(s)));
  }
  REQUIRE((bits(first) == bits(host)));
  auto expected = on_the_host(five, clipping());
  copy_parameters(host, expected);
  expected.resume(2);
  bool const shards = GENERATE(false, true);
  bool const evaluates = GENERATE(false, true);
  auto second = placed(on(5), by("single", 0, shards), five, clipping());
  copy_parameters(first, second);
  second.resume(2);
  CHECK((bits(second) == bits(host)));  // also before it is known who has which
  auto const more = batch_of(7);
  if (evaluates)
    CHECK(sg::run(second.evaluate(upload(more))).loss == sg::run(expected.evaluate(more)).loss);
  for (int s = 2; s < 5; ++s) {
    sg::run(second.step(upload(batch_of(s))));
    sg::run(expected.step(batch_of(s)));
    REQUIRE((bits(second) == bits(expected)));
    if (evaluates)
      CHECK(sg::run(second.evaluate(upload(more))).loss == sg::run(expected.evaluate(more)).loss);
  }
}

TEST_CASE("cuda/GroupSums: state is shared out to the same ranks in all steps, or in none",
          "[cuda]") {
  si::Session const session;
  auto c = uneven();
  c.schedule.make = [](sg::Shape shape) {
    return shape.microbatches == 4 ? sg::schedule::table_of(sg::schedule::Chimera{}, shape)
                                   : sg::schedule::table_of(sg::schedule::OneFOneB{}, shape);
  };
  auto train = placed(on(4), by("single", 0, true), c, clipping());
  sg::run(train.step(upload(batch_of(0))));
  auto const before = bits(train);
  auto const four = upload(row_model::batch(1, 4, 4, false));
  CHECK(has(words_of([&] { sg::run(train.step(four)); }),
            "is shared out to ranks, and a step of 4 microbatches shares it out to others; take "
            "all steps with as many microbatches, or leave shard_optimizer out"));
  CHECK((bits(train) == before));
}

TEST_CASE("cuda/GroupSums: where there is no memory for a part of the state, a later step has it",
          "[cuda]") {
  auto const c = uneven();
  auto host = on_the_host(c, clipping());
  sg::run(host.step(batch_of(0)));
  int nth = 1;
  for (bool refused = true; refused; nth += sanitized ? 7 : 1) {
    CAPTURE(nth);
    si::Session const session;
    auto train = placed(on(4), by("layerwise", 0, true), c, clipping());
    auto const data = upload(batch_of(0));
    si::fail(si::Call::malloc, nth, cudaErrorMemoryAllocation);
    refused = !words_of([&] { sg::run(train.step(data)); }).empty();
    si::fail(si::Call::comm_init, 1, 0);  // no more of it
    if (refused) sg::run(train.step(data));
    REQUIRE((bits(train) == bits(host)));
  }
  CHECK(nth > 20);
}

TEST_CASE("cuda/GroupSums: whatever CUDA refuses, parameters are those before or after", "[cuda]") {
  bool const shards = GENERATE(false, true);
  check_refusals(
      {.calls = {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
                 si::Call::memcpy_async, si::Call::memset_async, si::Call::set_device,
                 si::Call::malloc_from_pool},
       .most = 140,
       .stride = shards ? 36 : 12},
      [shards] { return placed(on(4), by("layerwise", 0, shards), uneven(), clipping()); },
      [](int s) { return upload(batch_of(s)); }, course_of_uneven());
}

TEST_CASE("cuda/GroupSums: after the first step nothing is made, allocated or awaited", "[cuda]") {
  bool const shards = GENERATE(false, true);
  si::Session const session;
  auto train = placed(on(4), by("layerwise", 0, shards), uneven(), clipping());
  check_steady(train, upload(batch_of(0)));
}

TEST_CASE("cuda/GroupSums: steps of another number of microbatches use the groups that stand",
          "[cuda]") {
  si::Session const session;
  auto const c = uneven();
  auto train = placed(on(4), by("layerwise", 0), c, clipping());
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
      table, {.replicas = &c.replicas, .groups = &groups, .shared = &sg::detail::shared_passes});
  std::vector<int> place;
  for (auto const& rank : program.ranks)
    place.push_back(rank.reducer_for < 0 ? static_cast<int>(place.size()) : rank.reducer_for);
  sg::cuda::detail::Routes const routes(program, place);
  std::vector<std::size_t> first_sum(groups.size(), routes.order.size());
  std::vector<std::size_t> last_part(groups.size());
  for (std::size_t t = 0; t < routes.order.size(); ++t) {
    auto const& issue = routes.order[t];
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
  auto host = on_the_host(c, clipping());
  auto first = placed(on(4), by("layerwise", 0), c, clipping());
  auto second = placed(on(4), by("single", 0), c, clipping());
  std::vector<BatchThere> data;
  for (int s = 0; s < 4; ++s) {
    sg::run(host.step(batch_of(s)));
    data.push_back(upload(batch_of(s)));
  }
  sg::run(second.step(data[3]));  // states of its own, which go
  for (std::size_t s = 0; s < 2; ++s) sg::run(first.step(data[s]));
  copy_parameters(first, second);
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
    auto host = on_the_host(c, clipping());
    for (int s = 0; s < 8; ++s) sg::run(host.step(row_model::batch(s % 2, 4, c.rows, false)));
    for (bool const shards : {false, true})
      CHECK(words_after_replays(on(gpus_of(c.place)), c, decides, bits(host), shards) == "");
  }
}

TEST_CASE("cuda/GroupSums: what cannot be run is refused in one sentence", "[cuda]") {
  si::Session const session;
  auto c = uneven();
  auto const data = upload(batch_of(0));
  c.replicas = {{3, 1}, 1};
  c.place = {0, 0, 1};  // both holders of the first stage on one GPU
  CHECK(words_of([&] {
          auto train = placed(on(2), by("single", 0), c, clipping());
          sg::run(train.step(data));
        }).empty());
  c.replicas = {3, 1};
  c.place = {0, 0, 1, 1};
  {
    auto train = placed(on(2), by("single", 0), c, clipping());
    auto host = on_the_host(c, clipping());
    CHECK(has(
        words_of([&] { sg::run(train.step(data)); }),
        "stage 0 is held by 3 ranks on 2 GPUs; put them on one GPU, or each on one of its own"));
    CHECK(sg::run(train.evaluate(data)).loss == sg::run(host.evaluate(batch_of(0))).loss);
  }
  auto policy = by("single", 0);
  policy.by = sg::collective::By::library;
  CHECK(has(words_of([&] { static_cast<void>(placed(on(4), policy, uneven(), clipping())); }),
            "take collective::By::slices, or mpi::Processes or nccl::Gpus for the device"));
}

}  // namespace gpus_replicas_test
