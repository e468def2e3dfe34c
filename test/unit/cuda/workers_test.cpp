// SPDX-License-Identifier: Apache-2.0
// Workers on GPUs and their parameter server, beside the same workers on threads.
#include <stagger/cuda/detail/host_exchange.hpp>

#include "catch.hpp"

#include <cstddef>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stagger/collective/grouped_pushes.hpp>
#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/parameter_server.hpp>
#include <stagger/core/stop_token.hpp>
#include <stagger/cuda/gpus.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/engine/run_together.hpp>
#include <stagger/host/threads.hpp>
#include <stagger/schedule/fifo.hpp>
#include <stagger/staleness/local_sgd.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>
#include <stagger/staleness/synchronous.hpp>
#include <stagger/staleness/wave_synchronous.hpp>

#include "cuda/not_finite_model.hpp"
#include "cuda/replica_model.hpp"
#if __has_include(<boost/asio/ip/tcp.hpp>)
#include <stagger/host/asio_parameter_server.hpp>
#endif

namespace workers_test {

using namespace gpus_model;
using not_finite_model::Calls;
using sg::TrafficKind;
using sg::collective::ParameterServer;
using sg::staleness::Adds;
using sg::staleness::Pushes;

namespace {

constexpr int parts = 4;  // microbatches of a step
constexpr Case one_f_one_b{"1f1b", 2, 1, parts, 2};
constexpr Case gpipe{"gpipe", 3, 1, parts, 1};
constexpr Case on_a_v{"zb-v", 2, 2, parts, 2};
constexpr sg::optimizer::Sgd sgd{.rate = 0.1, .momentum = 0.5};

/// The devices of a worker, whose first is the `at`-th.
std::vector<int> devices(Case const& c, int at) {
  std::vector<int> all;
  for (int g = 0; g < c.gpus; ++g) all.push_back(at + g);
  return all;
}

template <class Server, class Staleness, class Rule>
auto gpu_worker(Case const& c, int at, Server server, Staleness model, Rule rule,
                sg::Options const& options, Calls* calls) {
  return sg::Pipeline{not_finite_model::layers_on_device(calls)}.with(
      sg::partition::Cuts{c.cuts()}, schedule_of(c), LossOnGpu{},
      sg::cuda::Enqueued<Rule, Launch>{rule}, on_gpus(devices(c, at)), std::move(model),
      std::move(server), options);
}
template <class Server, class Staleness, class Rule>
auto host_worker(Case const& c, Server server, Staleness model, Rule rule,
                 sg::Options const& options, Calls* calls) {
  return sg::Pipeline{not_finite_model::layers_of_host(calls)}.with(
      sg::partition::Cuts{c.cuts()}, schedule_of(c), Loss{}, rule, sg::host::Threads{2},
      std::move(model), std::move(server), options);
}

/// Parameters without the optimizer's state.
template <class Train> std::vector<std::byte> values(Train& train) {
  std::vector<std::byte> all;
  for (auto const& state : train.parameters())
    all.insert(all.end(), state.value.begin(), state.value.end());
  return all;
}

struct AsItIs {
  sg::collective::ServerWorker operator()(sg::collective::ServerWorker worker) const {
    return worker;
  }
};
struct InGroups {
  auto operator()(sg::collective::ServerWorker worker) const {
    return sg::collective::GroupedPushes{std::move(worker), sg::collective::grouping::Layerwise{}};
  }
};

/// Two workers on GPUs and the same two on threads, each pair with a server of its own.
template <class Staleness, class Rule, class Wrap = AsItIs> struct Pairs {
  Pairs(Staleness model, Rule rule, sg::Options const& options,
        sg::collective::ServerOptions const& server = {.workers = 2}, Case first = one_f_one_b,
        Case second = gpipe, Wrap wrap = {})
      : there(server),
        here(server),
        gpu_0(gpu_worker(first, 0, wrap(there.worker(0)), model, rule, options, &calls[0])),
        gpu_1(gpu_worker(second, 2, wrap(there.worker(1)), model, rule, options, &calls[1])),
        host_0(host_worker(first, wrap(here.worker(0)), model, rule, options, &calls[2])),
        host_1(host_worker(second, wrap(here.worker(1)), model, rule, options, &calls[3])) {}

  /// A step of each, of all at once.
  void step(int s) {
    auto const a = batch(2 * s, parts, true);
    auto const b = batch(2 * s + 1, parts, true);
    auto const got = sg::run_together(gpu_0.step(a), gpu_1.step(b));
    auto const expected = sg::run_together(host_0.step(a), host_1.step(b));
    for (std::size_t n = 0; n < 2; ++n) {
      REQUIRE(got[n].loss == expected[n].loss);
      REQUIRE(got[n].gradient_norm == expected[n].gradient_norm);
    }
    check();
  }
  /// A step of each, one worker after the other.
  void alternate(int s) {
    auto const a = batch(2 * s, parts, true);
    auto const b = batch(2 * s + 1, parts, true);
    REQUIRE(sg::run(gpu_0.step(a)).loss == sg::run(host_0.step(a)).loss);
    REQUIRE(sg::run(gpu_1.step(b)).loss == sg::run(host_1.step(b)).loss);
    check();
  }
  void check() {
    REQUIRE((bits(gpu_0) == bits(host_0)));
    REQUIRE((bits(gpu_1) == bits(host_1)));
    CHECK(gpu_0.staleness() == host_0.staleness());
    for (auto const kind : {TrafficKind::pushes, TrafficKind::pulls})
      CHECK(gpu_1.traffic().of(kind) == host_1.traffic().of(kind));
  }
  /// A step of the second worker in which a gradient is NaN, and one of the other, which hears of
  /// it. @return what the second says, on GPUs and on threads
  std::pair<std::string, std::string> poison(int s) {
    auto const b = batch(2 * s + 1, parts, true);
    for (std::size_t const n : {std::size_t{1}, std::size_t{3}})
      calls[n].poisoned = calls[n].made.load();
    std::pair<std::string, std::string> words{words_of([&] { sg::run(gpu_1.step(b)); }),
                                              words_of([&] { sg::run(host_1.step(b)); })};
    CHECK(words_of([&] { sg::run(gpu_0.step(b)); }) == words_of([&] { sg::run(host_0.step(b)); }));
    CHECK((values(gpu_0) == values(host_0)));
    CHECK((values(gpu_1) == values(host_1)));
    CHECK((values(gpu_0) == values(gpu_1)));
    return words;
  }

  Calls calls[4];
  ParameterServer there, here;
  decltype(gpu_worker(Case{}, 0, std::declval<Wrap>()(std::declval<ParameterServer&>().worker(0)),
                      std::declval<Staleness>(), std::declval<Rule>(), sg::Options{},
                      nullptr)) gpu_0,
      gpu_1;
  decltype(host_worker(Case{}, std::declval<Wrap>()(std::declval<ParameterServer&>().worker(0)),
                       std::declval<Staleness>(), std::declval<Rule>(), sg::Options{},
                       nullptr)) host_0,
      host_1;
};

/// Runs `body` on a stand-in that loses no memory.
template <class Body> void with_stand_in(Body body) {
  si::Session const session;
  si::jitter(7);
  astray = 0;
  body();
  CHECK(astray == 0);
  si::reset();
  REQUIRE(session.left() == si::Live{});
}

/// Takes the same steps with two pairs of workers, whose weights must then be equal.
template <class A, class B, class C, class D> void same_steps(A& a, B& b, C& c, D& d, int steps) {
  for (int s = 0; s < steps; ++s) {
    auto const one = batch(2 * s, parts, true);
    auto const two = batch(2 * s + 1, parts, true);
    sg::run_together(a.step(one), b.step(two));
    sg::run_together(c.step(one), d.step(two));
    REQUIRE((bits(a) == bits(c)));
    REQUIRE((bits(b) == bits(d)));
  }
}

}  // namespace

TEST_CASE("cuda/workers: bulk synchronous workers have the bits of those on threads", "[cuda]") {
  bool const clips = GENERATE(false, true);
  bool const adam = GENERATE(false, true);
  CAPTURE(clips, adam);
  with_stand_in([&] {
    auto const run = [&](auto rule) {
      Pairs pairs(sg::staleness::Synchronous{}, rule, options_with(clips), {.workers = 2},
                  adam ? one_f_one_b : on_a_v);
      for (int s = 0; s < 3; ++s) pairs.step(s);
      auto const data = batch(9, parts, true);
      CHECK(sg::run(pairs.gpu_0.evaluate(data)).loss == sg::run(pairs.host_0.evaluate(data)).loss);
      pairs.step(4);
    };
    adam ? run(optimizer()) : run(sgd);
  });
}

TEST_CASE("cuda/workers: stale workers push gradients or changes as on threads", "[cuda]") {
  auto const pushes = GENERATE(Pushes::gradients, Pushes::changes);
  bool const alternates = GENERATE(false, true);  // and the server adds on arrival
  int const bound = GENERATE(0, 2);
  bool const changes = pushes == Pushes::changes;
  if (alternates ? bound == 0 : bound != 0 && !changes) return;  // would wait; is refused
  CAPTURE(changes, alternates, bound);
  auto const adds = alternates ? Adds::on_arrival : Adds::in_worker_order;
  with_stand_in([&] {
    Pairs pairs(sg::staleness::StaleSynchronous{bound, pushes, adds}, optimizer(), clipping(),
                {.workers = 2, .average_changes = changes && bound != 0});
    for (int s = 0; s < 5; ++s) alternates ? pairs.alternate(s) : pairs.step(s);
  });
}

TEST_CASE("cuda/workers: pushes are added in turn as on threads", "[cuda]") {
  with_stand_in([&] {
    Pairs pairs(sg::staleness::RoundRobinSynchronous{}, sgd, clipping());
    for (int s = 0; s < 4; ++s) pairs.step(s);
  });
}

TEST_CASE("cuda/workers: local steps are averaged as on threads", "[cuda]") {
  bool const state = GENERATE(false, true);
  CAPTURE(state);
  with_stand_in([&] {
    Pairs pairs(sg::staleness::LocalSgd{2, state}, optimizer(), clipping());
    for (int s = 0; s < 5; ++s) pairs.step(s);
  });
}

TEST_CASE("cuda/workers: groups of layers are pushed while backward still runs", "[cuda]") {
  with_stand_in([&] {
    Pairs pairs(sg::staleness::Synchronous{}, optimizer(), options_with(false), {.workers = 2},
                one_f_one_b, gpipe, InGroups{});
    for (int s = 0; s < 3; ++s) pairs.step(s);
    auto const [there, here] = pairs.poison(3);
    CHECK(has(there, "is not finite, so it was not pushed"));
    CHECK(there == here);
    for (int s = 4; s < 6; ++s) pairs.step(s);
  });
}

TEST_CASE("cuda/workers: replicas on one GPU push their sum", "[cuda]") {
  auto const schedule = schedule_of({"1f1b", 2, 1, parts, 1});
  with_stand_in([&] {
    ParameterServer there({.workers = 1}), here({.workers = 1});
    auto options = clipping();
    options.replicas = {2, 1};
    auto gpu = sg::Pipeline{replica_model::layers_there()}.with(
        sg::partition::Cuts{even_cuts(2)}, schedule, replica_model::LossThere{},
        sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, on_gpus({0}),
        there.worker(0), options);
    auto host = sg::Pipeline{row_model::model()}.with(sg::partition::Cuts{even_cuts(2)}, schedule,
                                                      Loss{}, optimizer(), sg::host::Threads{1},
                                                      here.worker(0), options);
    for (int s = 0; s < 3; ++s) {
      auto const data = row_model::batch(s, parts, 4, false);
      auto const uploaded = replica_model::upload(data);
      REQUIRE(sg::run(gpu.step(uploaded)).loss == sg::run(host.step(data)).loss);
      REQUIRE((bits(gpu) == bits(host)));
    }
    auto apart = [&] {
      static_cast<void>(
          sg::run(sg::Pipeline{replica_model::layers_there()}
                      .with(sg::partition::Cuts{even_cuts(2)}, schedule, replica_model::LossThere{},
                            sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()},
                            on_gpus({0, 1, 2}), ParameterServer({.workers = 1}).worker(0), options)
                      .step(replica_model::upload(row_model::batch(0, parts, 4, false)))));
    };
    CHECK(has(words_of(apart),
              "stage 0 of a worker has replicas on 2 GPUs, but its parameter server's weights are "
              "brought to one; put them on one GPU"));
  });
}

TEST_CASE("cuda/workers: of a step with a gradient that is not finite nothing is pushed",
          "[cuda]") {
  auto const pushes = GENERATE(Pushes::gradients, Pushes::changes);
  bool const keeps_state = pushes == Pushes::changes;  // which may have seen the failed step
  with_stand_in([&] {
    Pairs pairs(sg::staleness::StaleSynchronous{0, pushes, Adds::in_worker_order}, optimizer(),
                clipping());
    for (int s = 0; s < (keeps_state ? 2 : 4); ++s) {
      if (s % 2 == 0) {
        pairs.step(s);
        continue;
      }
      auto const [there, here] = pairs.poison(s);
      CHECK(has(there, "so this worker pushed nothing after step "));
      CHECK(has(here, "so this worker pushed nothing after step "));
    }
    // The other worker hears of it while it waits for weights.
    pairs.calls[1].poisoned = pairs.calls[1].made.load();
    auto const data = batch(5, parts, true);
    CHECK(has(words_of([&] { sg::run_together(pairs.gpu_0.step(data), pairs.gpu_1.step(data)); }),
              "so this worker pushed nothing after step "));
    sg::run_together(pairs.gpu_0.step(data), pairs.gpu_1.step(data));
  });
}

TEST_CASE("cuda/workers: a local step that is not finite takes its worker back to the last mean",
          "[cuda]") {
  with_stand_in([&] {
    Pairs pairs(sg::staleness::LocalSgd{2, false}, sgd, options_with(false));
    for (int s = 0; s < 3; ++s) pairs.step(s);
    CHECK(has(pairs.poison(3).first, "is not finite"));
  });
}

TEST_CASE("cuda/workers: a stage that throws ends the step of all, and the next one is right",
          "[cuda]") {
  with_stand_in([&] {
    ParameterServer server({.workers = 2}), calm({.workers = 2});
    int armed = 0;
    int never = 0;
    auto const make = [&](ParameterServer& from, int number, int* trap) {
      return sg::Pipeline{sg::Sequential{OnGpu<Embedding>{}, OnGpu<Dense>{}, Trap{trap},
                                         OnGpu<Norm>{}, OnGpu<Dense>{Dense{7}}}}
          .with(sg::partition::Cuts{{2, 4}}, schedule_of(three), LossOnGpu{},
                sg::cuda::Enqueued<sg::optimizer::AdamW, Launch>{optimizer()}, on_gpus({number}),
                from.worker(number), clipping(20));
    };
    auto a = make(server, 0, &armed);
    auto b = make(server, 1, &never);
    auto expected_a = make(calm, 0, &never);
    auto expected_b = make(calm, 1, &never);
    auto const both = [&](int s) {
      auto const data = batch(s, parts, true);
      sg::run_together(a.step(data), b.step(data));
      sg::run_together(expected_a.step(data), expected_b.step(data));
      REQUIRE((bits(a) == bits(expected_a)));
      REQUIRE((bits(b) == bits(expected_b)));
    };
    both(0);
    for (int s = 1; s < 4; ++s) {
      auto const data = batch(s, parts, true);
      auto const before = bits(a);
      armed = s;
      CHECK_THROWS_WITH(sg::run(a.step(data)), "sprung");
      armed = 0;
      CHECK((bits(a) == before));
      CHECK(has(words_of([&] { sg::run(b.step(data)); }), "another worker has failed"));
      CHECK((bits(b) == before));
      both(s);
    }
    // The other one hears of it while it waits for weights, too.
    auto const data = batch(9, parts, true);
    armed = 2;
    CHECK_THROWS_WITH(sg::run_together(a.step(data), b.step(data)), "sprung");
    CHECK((bits(a) == bits(b)));
  });
}

TEST_CASE("cuda/workers: one that waits too long names the worker that it waits for", "[cuda]") {
  with_stand_in([&] {
    ParameterServer server({.workers = 2});
    Calls calls;
    auto const make = [&](int number) {
      return gpu_worker(gpipe, number, server.worker(number), sg::staleness::Synchronous{}, sgd,
                        clipping(0.1), &calls);
    };
    auto a = make(0);
    auto b = make(1);
    auto const data = batch(0, parts, true);
    auto const words = words_of([&] { sg::run(a.step(data)); });
    CHECK(has(words, "no rank moved for 0.1 s: rank 0 waits before "));
    CHECK(has(words, "worker 1"));
    CHECK((bits(a) == bits(b)) == false);  // what it had pushed stays
    sg::run_together(a.step(data), b.step(data));
    CHECK((bits(a) == bits(b)));
  });
}

TEST_CASE("cuda/workers: one that is cancelled while it waits ends its step", "[cuda]") {
  with_stand_in([&] {
    ParameterServer server({.workers = 2});
    Calls calls[2];
    auto a = gpu_worker(gpipe, 0, server.worker(0), sg::staleness::Synchronous{}, sgd, clipping(),
                        &calls[0]);
    auto b = gpu_worker(gpipe, 1, server.worker(1), sg::staleness::Synchronous{}, sgd, clipping(),
                        &calls[1]);
    auto const data = batch(0, parts, true);
    sg::stop_source stop;
    auto step = a.step(data);
    step.stop_token(stop.get_token());
    std::thread stops([&] {
      while (calls[0].made.load() < parts) std::this_thread::yield();
      stop.request_stop();
    });
    CHECK(has(words_of([&] { sg::run(std::move(step)); }), "the step was cancelled"));
    stops.join();
    sg::run_together(a.step(data), b.step(data));
    CHECK((bits(a) == bits(b)));
  });
}

TEST_CASE("cuda/workers: whatever CUDA refuses, weights are the server's, and steps go on",
          "[cuda]") {
  bool const changes = GENERATE(false, true);
  std::vector<std::vector<std::byte>> course;
  Calls none;
  sg::staleness::StaleSynchronous const model{0, changes ? Pushes::changes : Pushes::gradients,
                                              Adds::in_worker_order};
  {
    ParameterServer server({.workers = 1});
    auto host = host_worker(one_f_one_b, server.worker(0), model, sgd, clipping(), &none);
    for (int s = 0; s < 2; ++s) {
      auto const data = batch(s, parts, true);
      sg::run(host.step(data));
      course.push_back(values(host));
    }
  }
  each_refusal(
      {.calls = {si::Call::launch_kernel, si::Call::event_record, si::Call::stream_wait_event,
                 si::Call::memcpy_async, si::Call::memset_async, si::Call::set_device},
       .most = 100,
       .stride = 13},
      [&](auto refused_in) {
        ParameterServer server({.workers = 1});
        auto train = gpu_worker(one_f_one_b, 0, server.worker(0), model, sgd, clipping(), &none);
        auto const step = [&](int s) {
          auto const data = batch(s, parts, true);
          sg::run(train.step(data));
        };
        step(0);
        bool const failed = refused_in([&] { step(1); });
        auto const now = values(train);
        REQUIRE((now == course[1] || (failed && now == course[0])));
        step(2);
      });
}

TEST_CASE("cuda/workers: a worker on threads and one on a GPU train together", "[cuda]") {
  with_stand_in([&] {
    ParameterServer mixed({.workers = 2}), plain({.workers = 2});
    Calls calls[4];
    sg::staleness::StaleSynchronous const model{1, Pushes::changes, Adds::in_worker_order};
    auto a = gpu_worker(one_f_one_b, 0, mixed.worker(0), model, optimizer(), clipping(), &calls[0]);
    auto b = host_worker(gpipe, mixed.worker(1), model, optimizer(), clipping(), &calls[1]);
    auto c = host_worker(one_f_one_b, plain.worker(0), model, optimizer(), clipping(), &calls[2]);
    auto d = host_worker(gpipe, plain.worker(1), model, optimizer(), clipping(), &calls[3]);
    same_steps(a, b, c, d, 4);
  });
}

TEST_CASE("cuda/workers: after the first steps nothing is made, allocated or synchronised",
          "[cuda]") {
  with_stand_in([&] {
    ParameterServer server({.workers = 1});
    Calls none;
    auto train =
        gpu_worker(one_f_one_b, 0, server.worker(0),
                   sg::staleness::StaleSynchronous{2, Pushes::changes}, sgd, clipping(), &none);
    check_steady(train, batch(0, parts, false));
  });
}

TEST_CASE("cuda/workers: pushes and pulls of a recorded step have times", "[cuda]") {
  with_stand_in([&] {
    ParameterServer server({.workers = 1});
    Calls none;
    auto options = options_with(false);
    options.record = true;
    auto train = gpu_worker(one_f_one_b, 0, InGroups{}(server.worker(0)),
                            sg::staleness::Synchronous{}, sgd, options, &none);
    auto const data = batch(0, parts, false);
    auto ticket = sg::enqueue(train.step(data));  // returns when the step is done
    CHECK(ticket.done());
    int pushes = 0;
    int pulls = 0;
    auto const timeline = train.timeline();
    for (int r = 0; r < timeline.ranks(); ++r) {
      double before = 0;
      for (auto const& span : timeline.row(r)) {
        CHECK(span.start_s >= before);
        before = span.start_s;
        pushes += span.action.kind == sg::schedule::Kind::push ? 1 : 0;
        pulls += span.action.kind == sg::schedule::Kind::pull ? 1 : 0;
      }
    }
    CHECK(pushes == 6);  // groups
    CHECK(pulls == 2);   // stages
  });
}

namespace {
/// A launch of a kernel that makes no changes, and a rule without an update for the host.
struct OldLaunch {
  static constexpr bool asks_scale = true;
  template <class Update> cudaError_t operator()(Update const&, cudaStream_t) const {
    return cudaSuccess;
  }
};
struct DeviceRule {
  static constexpr int states = 0;
  static constexpr bool element_wise = true;
  double rate = 0.1;
};
}  // namespace

TEST_CASE("cuda/workers: what a worker on GPUs cannot do is refused in words", "[cuda]") {
  with_stand_in([&] {
    auto const made = [](auto optimizer_of, auto model, sg::cuda::Gpus gpus, auto schedule) {
      return words_of([&] {
        ParameterServer server({.workers = 1});
        auto train = sg::Pipeline{layers_on_gpus()}.with(schedule, LossOnGpu{}, optimizer_of,
                                                         std::move(gpus), model, server.worker(0));
        static_cast<void>(train);
      });
    };
    sg::cuda::Enqueued<sg::optimizer::AdamW, Launch> const adam{optimizer()};
    sg::staleness::StaleSynchronous const changes{0, Pushes::changes};
    sg::schedule::Fifo const fifo{1};
    auto const flushing = schedule_of(one_f_one_b);
    auto captured = on_gpus({0});
    captured.capture = true;
    CHECK(made(adam, changes, on_gpus({0}), flushing).empty());
    CHECK(has(made(adam, sg::staleness::WaveSynchronous{}, on_gpus({0}), fifo),
              "a worker on a GPU takes no streams of minibatches; use host::Threads"));
    CHECK(has(made(adam, sg::staleness::OverlappedSynchronous{}, on_gpus({0}), flushing),
              "layers of a worker on a GPU cannot be late; use host::Threads"));
    CHECK(has(made(sg::cuda::Enqueued<sg::optimizer::Sgd, OldLaunch>{sgd}, changes, on_gpus({0}),
                   flushing),
              "a worker on a GPU that pushes changes needs an optimizer's kernel that makes them"));
    CHECK(has(made(sg::cuda::Enqueued<DeviceRule, OldLaunch>{}, sg::staleness::Synchronous{},
                   on_gpus({0}), flushing),
              "a parameter server takes the steps of its workers on the host, where this optimizer "
              "has no rule"));
    CHECK(has(made(adam, changes, captured, flushing),
              "a step of a worker waits on the host for its parameter server, which a graph "
              "cannot; leave capture out"));
  });
}

#if __has_include(<boost/asio/ip/tcp.hpp>)
TEST_CASE("cuda/workers: a server over TCP has the bits of one in the process", "[cuda]") {
  bool const changes = GENERATE(false, true);
  with_stand_in([&] {
    ParameterServer near({.workers = 2});
    ParameterServer server({.workers = 2});
    sg::host::AsioParameterServer const listening(server, {}, sgd);
    sg::host::RemoteParameterServer const far({.port = listening.port()});
    sg::staleness::StaleSynchronous const model{0, changes ? Pushes::changes : Pushes::gradients,
                                                Adds::in_worker_order};
    Calls none;
    auto a = gpu_worker(one_f_one_b, 0, far.worker(0), model, sgd, clipping(), &none);
    auto b = gpu_worker(gpipe, 2, far.worker(1), model, sgd, clipping(), &none);
    auto c = gpu_worker(one_f_one_b, 0, near.worker(0), model, sgd, clipping(), &none);
    auto d = gpu_worker(gpipe, 2, near.worker(1), model, sgd, clipping(), &none);
    same_steps(a, b, c, d, 3);
  });
}
#endif

}  // namespace workers_test
