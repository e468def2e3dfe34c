// SPDX-License-Identifier: Apache-2.0
#include <stagger/cuda/gpus.hpp>

#include "catch.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/engine/groups.hpp>
#include <stagger/partition/layer_split.hpp>
#include <stagger/placement/explicit_map.hpp>
#include <stagger/train/checkpoint.hpp>

#include "cuda/checks.hpp"
#include "engine/split_model.hpp"
#include "temporary_folder.hpp"

namespace gpus_groups_test {

using namespace enqueued_model;
using sg::partition::Update;
using split_model::Case;

namespace {

using Number = double;
using Here = sg::Tensor<Number>;
using There = sg::cuda::Tensor<Number>;
using Linear = split_model::Linear<Number>;
using Squash = split_model::Squash<Number>;
using Words = std::vector<std::byte>;

/// In this step, counted from 0, the first microbatch has a gradient of a shared layer that is NaN.
std::atomic<std::int64_t> poisoned_step{-1};

/// Inputs of layers but the first that do not have the extents which the layer before gave.
std::atomic<int> flattened{0};

/// A value as a kernel is given it: rows and columns.
Bare<Number> flat(There const& value) {
  return {const_cast<Number*>(value.data()), value.rows(), value.columns()};
}

/// A layer of the host's as kernels.
template <class L> class Kernels {
 public:
  using Input = There;
  using Output = There;
  using Saved = sg::SavedOf<L>;

  explicit Kernels(L layer) : layer_(std::move(layer)) {}
  auto parameters()
    requires sg::HasParameters<L>
  {
    return layer_.parameters();
  }
  /// y has three extents, of which kernels use the first and the product of the others.
  void forward(sg::Context& context, There const& x, There& y, Saved& saved) {
    if (context.layer() != 0 && x.extent(2) == 0) ++flattened;
    y.resize({x.extent(0), 1, width(x)});
    enqueue(context, [this, x = flat(x), y = flat(y), &saved](sg::Context& own) {
      store<Here>(y, [&](Here& to) { layer_.forward(own, load<Here>(x), to, saved); });
    });
  }
  void backward_input(sg::Context& context, There const& x, There const& dy, There& dx,
                      Saved& saved) {
    dx.resize_like(x);
    enqueue(context, [this, x = flat(x), dy = flat(dy), dx = flat(dx), &saved](sg::Context& own) {
      store<Here>(dx, [&](Here& to) {
        layer_.backward_input(own, load<Here>(x), load<Here>(dy), to, saved);
      });
    });
  }
  void backward_weight(sg::Context& context, There const& x, There const& dy, Saved& saved)
    requires sg::HasBackwardWeight<L>
  {
    enqueue(context, [this, x = flat(x), dy = flat(dy), &saved](sg::Context& own) {
      layer_.backward_weight(own, load<Here>(x), load<Here>(dy), saved);
      if (own.step() == poisoned_step && own.microbatch() == 0 && own.layer() == 3)
        own.gradient(layer_.weight)[0] = std::numeric_limits<Number>::quiet_NaN();
    });
  }

 protected:
  L layer_;

 private:
  [[nodiscard]] std::size_t width(There const& x) const {
    if constexpr (requires { layer_.out; })
      return layer_.out;
    else
      return x.columns();
  }
  /// A kernel gets addresses now, and the numbers of its step when it runs.
  template <class Body> void enqueue(sg::Context& context, Body body) {
    spring_traps();
    std::vector<sg::ParameterView> views;
    if constexpr (sg::HasParameters<L>)
      std::apply(
          [&](auto&... p) {
            (views.push_back(
                 {const_cast<Number*>(context[p].data()), context.gradient(p).data(), p.size()}),
             ...);
          },
          layer_.parameters());
    auto const layer = static_cast<std::size_t>(context.layer());
    auto const kernel = [body, views, layer, row = context.first_row(),
                         column = context.first_column(), microbatch = context.microbatch(),
                         numbers = sg::cuda::step_numbers(), training = context.training()] {
      std::vector<std::size_t> const rows(static_cast<std::size_t>(microbatch) + 1, row);
      std::vector<sg::Context::LayerOffset> const offsets(layer + 1, {rows.data(), column});
      sg::Context own;
      own.begin_step(numbers->steps, numbers->seed, training);
      own.set_layer_offsets(offsets.data());
      own.begin_action(views.data(), static_cast<int>(layer), microbatch);
      body(own);
    };
    sg::cuda::check(launch(sg::cuda::stream(), kernel), "launch a kernel");
  }
};

struct LinearThere : Kernels<Linear> {
  static constexpr bool by_inputs = true;
  using Kernels::Kernels;
  [[nodiscard]] std::size_t inputs() const { return layer_.inputs(); }
  [[nodiscard]] std::size_t outputs() const { return layer_.outputs(); }
  [[nodiscard]] LinearThere part(int member, int members, sg::SplitBy by) const {
    return LinearThere{layer_.part(member, members, by)};
  }
};
struct SquashThere : Kernels<Squash> {
  static constexpr bool element_wise = true;
  SquashThere() : Kernels({}) {}
};

/// The host's loss as a kernel.
struct LossThere {
  using policy_tag = sg::LossTag;
  using Target = There;
  [[nodiscard]] double terms(There const& target) const {
    return static_cast<double>(target.size());
  }
  double value(sg::Context& context, There const& y, There const& target) const {
    return enqueue(context, [y = flat(y), target = flat(target)](sg::Context& own) {
      return Loss{}.value(own, load<Here>(y), load<Here>(target));
    });
  }
  double value_and_gradient(sg::Context& context, There const& y, There const& target, double scale,
                            There& dy) const {
    dy.resize_like(y);
    return enqueue(
        context, [y = flat(y), target = flat(target), scale, dy = flat(dy)](sg::Context& own) {
          double loss = 0;
          store<Here>(dy, [&](Here& to) {
            loss = Loss{}.value_and_gradient(own, load<Here>(y), load<Here>(target), scale, to);
          });
          return loss;
        });
  }

 private:
  using Loss = sg::loss::MeanSquaredError<Number>;
  template <class Body> static double enqueue(sg::Context& context, Body body) {
    sg::cuda::check(launch(sg::cuda::stream(),
                           [body, place = sg::cuda::loss_place(context)] {
                             sg::Context own;
                             *place += body(own);
                           }),
                    "launch a kernel");
    return std::numeric_limits<double>::quiet_NaN();  // ignored
  }
};

/// split_model::model.
auto layers_there(unsigned pattern) {
  auto const& w = split_model::usual_widths;
  auto const can = [&](unsigned bit) { return (pattern >> bit & 1U) != 0; };
  return sg::Sequential{LinearThere{Linear{split_model::inputs, w[0], 1, false}},
                        LinearThere{Linear{w[0], w[1], 2, can(0)}},
                        SquashThere{},
                        LinearThere{Linear{w[1], w[2], 3, can(1)}},
                        LinearThere{Linear{w[2], w[3], 4, can(2)}},
                        SquashThere{},
                        LinearThere{Linear{w[3], split_model::outputs, 5, can(3)}}};
}

using Batch = split_model::Batch<Number>;
using BatchThere = sg::Batch<There, There>;

There upload(Here const& from) {
  There to({from.extent(0), from.extent(1)});
  std::copy(from.data(), from.data() + from.size(), to.data());
  return to;
}
BatchThere upload(Batch const& from) {
  BatchThere to;
  for (auto const& x : from.inputs) to.inputs.push_back(upload(x));
  for (auto const& t : from.targets) to.targets.push_back(upload(t));
  return to;
}
Batch batch_of(Case const& of, int step) {
  return split_model::batch<Number>(step, of.microbatches, 9);
}

/// A rule whose numbers depend on that of the step.
sg::optimizer::AdamW rule() { return {.rate = 0.01, .beta1 = 0.8, .weight_decay = 0.1}; }

template <class Layers, class Loss, class Rule, class Device>
auto pipeline(Layers layers, Loss loss, Rule const& rule, Device device, Case const& of,
              std::vector<int> const& place, bool shards = false) {
  sg::Options options = of.options;
  options.seed = 7;
  std::size_t const positions =
      (of.cuts.size() + 1) / static_cast<std::size_t>(of.schedule.chunks());
  if (of.members * of.groups > 1)
    options.replicas = split_model::replicas(positions, of.members * of.groups);
  if (!of.counts.empty()) options.replicas = sg::Replicas::even(of.counts.data(), of.counts.size());
  return sg::Pipeline{std::move(layers)}.with(
      sg::partition::LayerSplit<>{of.members, {of.cuts}, of.threshold, of.pairs, of.update},
      of.schedule, loss, rule, std::move(device), options, sg::placement::ExplicitMap{place},
      sg::collective::AllReduce<>{.shard_optimizer = shards, .measured_steps = 0});
}
std::vector<int> on_first(Case const& of) {
  std::size_t ranks = 0;
  for (int const count : of.counts) ranks += static_cast<std::size_t>(count);
  if (of.counts.empty())
    ranks = (of.cuts.size() + 1) / static_cast<std::size_t>(of.schedule.chunks()) *
            static_cast<std::size_t>(of.members * of.groups);
  return std::vector<int>(ranks);
}
auto on_host(Case const& of) {
  return pipeline(split_model::model<Number>(of.pattern), sg::loss::MeanSquaredError<Number>{},
                  rule(), sg::host::Threads{1}, of, on_first(of));
}
/// @param place   GPU of each rank
/// @param shards  AllReduce::shard_optimizer
auto on_gpus(Case const& of, std::vector<int> const& place, sg::cuda::Gpus gpus = {},
             bool shards = false) {
  for (int g = 0; g <= *std::max_element(place.begin(), place.end()); ++g)
    gpus.devices.push_back(g);
  if (gpus.kernels == nullptr) gpus.kernels = &sg::cuda::parameter_kernels;
  return pipeline(layers_there(of.pattern), LossThere{},
                  sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{rule()}, std::move(gpus), of,
                  place, shards);
}

struct Placed {
  Case of;
  std::vector<int> place;  // GPU of each rank
};

/// Schedules, what is split, members and groups, on one GPU and on several.
std::vector<Placed> placed(Update update) {
  using namespace sg::schedule;
  std::vector<Placed> all;
  bool const each_pass = update == Update::each_pass;
  auto const add = [&](Case of, std::vector<int> several) {
    of.update = update;
    if (!each_pass) of.options.clip_norm = 0.05;
    all.push_back({of, on_first(of)});
    if (!several.empty()) all.push_back({of, std::move(several)});
  };
  add({.schedule = made(GPipe{})}, {0, 1});
  add({.pattern = 10, .members = 4, .schedule = made(GPipe{})}, {2, 1, 0, 3});
  add({.members = 3, .pairs = true, .microbatches = 3, .schedule = made(ZeroBubbleH1{})},
      {0, 1, 2});
  add({.microbatches = 4, .cuts = {1}, .counts = {3, 2}}, {0, 1, 2, 1, 0});
  if (each_pass) add({.members = 1, .microbatches = 3, .counts = {1}}, {});
  if (each_pass) add({.members = 1, .microbatches = 4, .cuts = {3}}, {0, 1});
  if (each_pass) return all;
  add({.pattern = 13, .groups = 2, .options = {.recompute = true}}, {0, 1, 2, 3});
  add({.pattern = 13, .pairs = true, .microbatches = 4, .cuts = {3}}, {0, 1, 1, 0});
  add({.pattern = 6, .microbatches = 4, .schedule = made(Interleaved{}), .cuts = {1, 3, 5}},
      {0, 1, 2, 3});
  add({.microbatches = 4, .schedule = made(Chimera{}), .cuts = {3}}, {0, 1, 2, 3});
  return all;
}

template <class Train, class Host>
void check_same_groups(Train& train, Host& host, Case const& of, bool varies) {
  std::vector<BatchThere> data;  // what was enqueued is used until its ticket is done
  auto const at = [&](int step) { return batch_of(of, varies ? step : 0); };
  for (int s = 0; s < 7; ++s) data.push_back(upload(at(s)));
  for (std::size_t s = 0; s < 4; ++s) {
    auto const expected = sg::run(host.step(at(static_cast<int>(s))));
    auto const got = sg::run(train.step(data[varies ? s : 0]));
    REQUIRE(got.loss == expected.loss);
    REQUIRE(got.gradient_norm == expected.gradient_norm);
    REQUIRE((bits(train) == bits(host)));
  }
  auto const last = at(9);
  auto const last_there = upload(last);
  REQUIRE(sg::run(train.evaluate(last_there)).loss == sg::run(host.evaluate(last)).loss);
  std::vector<Here> expected(last.inputs.size());
  std::vector<There> outputs(last.inputs.size());
  sg::run(host.predict(last.inputs, expected));
  sg::run(train.predict(last_there.inputs, outputs));
  sg::cuda::check(cudaStreamSynchronize(sg::cuda::stream()), "wait");
  for (std::size_t m = 0; m < expected.size(); ++m) {
    auto const got = load<Here>(flat(outputs[m]));
    REQUIRE(got.size() == expected[m].size());
    REQUIRE(std::equal(got.data(), got.data() + got.size(), expected[m].data()));
  }
  std::vector<sg::Ticket> tickets;
  for (std::size_t s = 4; s < 7; ++s) {  // ahead of the devices, where they let the host
    sg::run(host.step(at(static_cast<int>(s))));
    tickets.push_back(sg::enqueue(train.step(data[varies ? s : 0])));
    if (of.update == Update::each_pass) REQUIRE(tickets.back().done());
  }
  for (auto& ticket : tickets) ticket.wait();
  REQUIRE((bits(train) == bits(host)));
}

}  // namespace

TEST_CASE("cuda/groups: groups of ranks that share layers have the host's bits", "[cuda]") {
  bool const capture = GENERATE(false, true);
  unsigned number = 0;
  auto const update = GENERATE(Update::accumulate, Update::each_pass);
  for (auto const& [of, place] : placed(update)) {
    unsigned const own = number++;  // cases come in pairs: on one GPU, and on several
    if ((own / 2 + own) % 2 != (capture ? 1 : 0) || (sanitized && own % 3 != 0)) continue;
    CAPTURE(update, of.pattern, of.members, of.groups, of.cuts, place, capture);
    si::Session const session;
    si::set_machine({.devices = 8});
    si::jitter(7);
    flattened = 0;
    sg::cuda::GraphCounts counts;
    for (bool const shards : {false, true}) {
      if (shards && (update == Update::each_pass || own % 2 == 0)) continue;
      counts = {};
      auto host = on_host(of);
      auto train = on_gpus(of, place, {.capture = capture, .counts = &counts}, shards);
      check_same_groups(train, host, of, !capture);
    }
    CHECK((counts.replays != 0) == capture);
    if (of.pairs && of.cuts.empty()) CHECK(flattened == 0);  // nothing is put together from columns
    si::reset();
    REQUIRE(session.left() == si::Live{});
  }
}

namespace {

/// Two groups' worth of exchanges in front of the first split layer and behind it.
Case of_update(Update update) {
  Case of{.microbatches = 3};
  of.update = update;
  if (update == Update::accumulate) of.options.clip_norm = 0.05;
  return of;
}
Placed any_place() {
  auto const update = GENERATE(Update::accumulate, Update::each_pass);
  bool const several = GENERATE(false, true);
  return {of_update(update), several ? std::vector{0, 1} : std::vector{0, 0}};
}

/// Parameters of the host after steps 0, 1 and 2.
std::vector<Words> course_of(Case const& of) {
  std::vector<Words> course;
  auto host = on_host(of);
  for (int s = 0; s < 3; ++s) {
    sg::run(host.step(batch_of(of, s)));
    course.push_back(bits(host));
  }
  return course;
}

}  // namespace

TEST_CASE("cuda/groups: whatever CUDA refuses, parameters are those before or after the step",
          "[cuda]") {
  auto const [of, place] = any_place();
  bool const capture = (of.update == Update::each_pass) == (place[1] == 0);
  CAPTURE(of.update, place, capture);
  check_refusals(
      {.calls = {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
                 si::Call::memcpy_async, si::Call::memset_async, si::Call::malloc_from_pool},
       .most = 200,
       .stride = 37},
      [&] { return on_gpus(of, place, {.capture = capture}); },
      [&](int s) { return upload(batch_of(of, s)); }, course_of(of));
}

TEST_CASE("cuda/groups: a member that throws ends the step, and changes nothing", "[cuda]") {
  auto const [of, place] = any_place();
  CAPTURE(of.update, place);
  auto const course = course_of(of);
  si::Session const session;
  auto train = on_gpus(of, place);
  auto const step = [&](int s) {
    auto const data = upload(batch_of(of, s));
    sg::run(train.step(data));
  };
  step(0);
  for (int const nth : {1, 20, 50, 80}) {
    throw_in = nth;
    CHECK(has(words_of([&] { step(1); }), "trapped"));
    REQUIRE(throw_in == 0);
    REQUIRE((bits(train) == course[0]));
  }
  step(1);
  step(2);
  CHECK((bits(train) == course[2]));
}

TEST_CASE("cuda/groups: a gradient that is not finite in one pass fails the whole step", "[cuda]") {
  auto const [of, place] = any_place();
  bool const capture = GENERATE(false, true);
  CAPTURE(of.update, place, capture);
  auto const course = course_of(of);
  si::Session const session;
  auto train = on_gpus(of, place, {.capture = capture});
  BatchThere const data[] = {upload(batch_of(of, 0)), upload(batch_of(of, 1)),
                             upload(batch_of(of, 2))};
  sg::run(train.step(data[0]));
  poisoned_step = 1;
  auto const words = words_of([&] { sg::run(train.step(data[1])); });
  poisoned_step = -1;
  CHECK(has(words, of.update == Update::each_pass ? "a gradient is not finite in one of the passes"
                                                  : "a gradient of layer 3 on rank "));
  CHECK(has(words, "nothing was updated after step 1"));
  CHECK(train.steps() == 1);
  REQUIRE((bits(train) == course[0]));
  sg::run(train.step(data[1]));
  sg::run(train.step(data[2]));
  CHECK((bits(train) == course[2]));
}

TEST_CASE("cuda/groups: after the first steps nothing is made, allocated or awaited", "[cuda]") {
  auto const [of, place] = any_place();
  CAPTURE(of.update, place);
  si::Session const session;
  auto train = on_gpus(of, place);
  static_cast<void>(train.capture(GENERATE(false, true)));
  auto const data = upload(batch_of(of, 0));
  if (of.update == Update::accumulate) return check_steady(train, data);
  // What is updated in passes is saved before a step, by copies that are awaited.
  for (int s = 0; s < 2; ++s) sg::run(train.step(data));
  auto const made = [] {
    return calls_of({si::Call::event_create, si::Call::stream_create, si::Call::malloc,
                     si::Call::malloc_from_pool, si::Call::graph_instantiate});
  };
  auto const before = made();
  for (int s = 0; s < 3; ++s) sg::run(train.step(data));
  CHECK(made() == before);
}

TEST_CASE("cuda/groups: parameters are those of the whole model, for checkpoints and for writing",
          "[cuda]") {
  auto const [of, place] = any_place();
  CAPTURE(of.update, place);
  si::Session const session;
  TemporaryFolder const folder;
  sg::Checkpoints const checkpoints(folder.path());
  auto host = on_host(of);
  auto first = on_gpus(of, place);
  Case three = of;
  three.members = 3;
  auto other = on_gpus(three, {0, 1, 2});
  for (int s = 0; s < 2; ++s) {
    auto const data = batch_of(of, s);
    sg::run(host.step(data));
    sg::run(first.step(upload(data)));
  }
  checkpoints.write({.step = first.steps(), .seed = 7, .model = "split", .settings = ""}, first);
  static_cast<void>(checkpoints.restore("split", other));
  CHECK(other.steps() == 2);
  CHECK((bits(other) == bits(host)));
  auto back = on_gpus(of, place);
  sg::run(back.step(upload(batch_of(of, 5))));  // states of its own, which go
  copy_parameters(other, back);
  back.resume(other.steps());
  auto const data = batch_of(of, 2);
  sg::run(host.step(data));
  sg::run(back.step(upload(data)));
  CHECK((bits(back) == bits(host)));

  auto const shown = back.parameters();
  auto const at = [](auto const& states) { return states[2].template values<Number>().data(); };
  at(shown)[0] = 5;
  auto const again = back.parameters();
  CHECK(at(again)[0] == 5);
  for (std::size_t p = 0; p < shown.size(); ++p) {  // both may be used until the next step
    CHECK(again[p].value.data() == shown[p].value.data());
    CHECK(again[p].state[0].data() == shown[p].state[0].data());
  }
}

namespace {

/// A layer that members can share, of values whose columns the host copies.
struct HostLayer {
  using Input = Here;
  using Output = Here;
  std::size_t in = 4;
  sg::Parameter<> weight{"weight", std::vector<float>(4)};
  auto parameters() { return std::tie(weight); }
  [[nodiscard]] std::size_t inputs() const { return in; }
  [[nodiscard]] std::size_t outputs() const { return 4; }
  [[nodiscard]] HostLayer part(int member, int members, sg::SplitBy) const {
    HostLayer own = *this;
    auto const mine = sg::features_of(member, members, std::size_t{4});
    own.weight = weight.piece({.first = mine.first, .length = mine.size()});
    return own;
  }
  void forward(sg::Context&, Here const& x, Here& y, sg::NothingSaved&) { y = x; }
  void backward(sg::Context&, Here const&, Here const& dy, Here& dx, sg::NothingSaved&) { dx = dy; }
};

}  // namespace

TEST_CASE("cuda/groups: what cannot be run is refused in one sentence", "[cuda]") {
  si::Session const session;
  Case const of = of_update(Update::accumulate);
  auto kernels = sg::cuda::parameter_kernels;
  kernels.add_block = nullptr;
  CHECK(has(words_of([&] {
              auto train = on_gpus(of, {0, 0}, {.kernels = &kernels});
              sg::run(train.step(upload(batch_of(of, 0))));
            }),
            "which needs a kernel; give Gpus::kernels an add_block"));
  auto in_passes = sg::cuda::parameter_kernels;
  in_passes.add = nullptr;
  Case alone = of_update(Update::each_pass);
  alone.members = 1;
  alone.counts = {1};
  CHECK(has(words_of([&] {
              auto train = on_gpus(alone, {0}, {.kernels = &in_passes});
              sg::run(train.step(upload(batch_of(alone, 0))));
            }),
            "layers that are updated in each pass need a kernel that adds gradients"));
  CHECK(has(words_of([&] {
              auto train = sg::Pipeline{sg::Sequential{HostLayer{}, HostLayer{}}}.with(
                  sg::partition::LayerSplit<>{.group = 2, .threshold = 0},
                  sg::loss::MeanSquaredError<Number>{},
                  sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{rule()}, on_device(),
                  sg::Options{.replicas = {2}});
              sg::run(train.step(batch_of(of, 0)));
            }),
            "has columns that the host copies"));
}

}  // namespace gpus_groups_test
