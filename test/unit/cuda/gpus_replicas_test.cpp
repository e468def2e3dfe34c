// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/detail/group_sums.hpp>

#include "catch.hpp"

#include <string>
#include <vector>

#include <stagger/model/lamb.hpp>
#include <stagger/model/muon.hpp>
#include <stagger/program/lay_out.hpp>

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
void check_whole_parameters(Case const& c, Optimizer const& update, bool clips) {
  CAPTURE(c.name, clips);
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
      sg::cuda::Enqueued<Optimizer, LaunchOnHost>{update}, on(gpus_of(c.place)), by("layerwise", 0),
      sg::placement::ExplicitMap{c.place}, options);
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
  bool clips = false;
  for (Case const& c : cases()) check_whole_parameters(c, sg::optimizer::Lamb{}, clips = !clips);
  check_whole_parameters(cases().back(), sg::optimizer::Muon{}, false);
}

TEST_CASE("cuda/GroupSums: whatever CUDA refuses, parameters are those before or after", "[cuda]") {
  check_refusals(
      {.calls = {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
                 si::Call::memcpy_async, si::Call::memset_async, si::Call::set_device,
                 si::Call::malloc_from_pool},
       .most = 140,
       .stride = 12},
      [] { return placed(on(4), by("layerwise", 0), uneven(), clipping()); },
      [](int s) { return upload(batch_of(s)); }, course_of_uneven());
}

TEST_CASE("cuda/GroupSums: after the first step nothing is made, allocated or awaited", "[cuda]") {
  si::Session const session;
  auto train = placed(on(4), by("layerwise", 0), uneven(), clipping());
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
          auto train = placed(on(2), by("single", 0), c, clipping());
          sg::run(train.step(data));
        }).empty());
  c.replicas = {3, 1};
  c.place = {0, 0, 1, 1};
  CHECK(
      has(words_of([&] {
            auto train = placed(on(2), by("single", 0), c, clipping());
            sg::run(train.step(data));
          }),
          "stage 0 is held by 3 ranks on 2 GPUs; put them on one GPU, or each on one of its own"));
  auto policy = by("single", 0);
  policy.shard_optimizer = true;
  CHECK(has(words_of([&] { static_cast<void>(placed(on(4), policy, uneven(), clipping())); }),
            "does not share the optimizer's state out"));
  policy = by("single", 0);
  policy.by = sg::collective::By::library;
  CHECK(has(words_of([&] { static_cast<void>(placed(on(4), policy, uneven(), clipping())); }),
            "take collective::By::slices, or mpi::Processes or nccl::Gpus for the device"));
}

}  // namespace gpus_replicas_test
