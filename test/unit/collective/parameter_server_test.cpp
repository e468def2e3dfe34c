// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/parameter_server.hpp>

#include "catch.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace parameter_server_test {

namespace sg = stagger;
using sg::detail::LayerParameters;
using sg::detail::ParameterLink;

namespace {

/// What a server has told a worker.
struct Told final : sg::detail::ParameterListener {
  std::vector<std::size_t> last{};  // layers
  int answers = 0;                  // others
  bool failed = false;
  std::string words{};
  void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
    rounds == sg::detail::all_rounds ? last.push_back(layer) : void(++answers);
  }
  void lost(std::exception_ptr why) noexcept override {
    failed = true;
    try {
      std::rethrow_exception(why);
    } catch (std::exception const& error) {
      words = error.what();
    }
  }
};

std::vector<LayerParameters> model_of(std::size_t layers) {
  std::vector<LayerParameters> model(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    sg::List<sg::detail::ParameterDeclaration> declared;
    sg::detail::ParameterDeclaration d;
    d.name.push_back('w');
    d.type = sg::ElementType::f32;
    d.size = 1;
    d.initial.assign(sizeof(float), std::byte{0});
    declared.push_back(std::move(d));
    model[l].adopt(std::move(declared), static_cast<int>(l), 0);
  }
  return model;
}

sg::detail::WorkerRules changes() {
  sg::detail::WorkerRules rules;
  rules.optimizer.digest = [](void const*) noexcept { return std::uint64_t{1}; };
  return rules;
}

/// Of a layer with one parameter of one element, which is padded to a cache line.
struct Values {
  alignas(sg::alignment_bytes) float padded[sg::alignment_bytes / sizeof(float)] = {};
  std::byte* bytes() { return reinterpret_cast<std::byte*>(padded); }
  float first() const { return padded[0]; }
};

/// A worker whose every push adds 1 to each layer.
struct Worker {
  std::shared_ptr<ParameterLink> link;
  Told told{};
  Worker(sg::collective::ParameterServer const& server, int number,
         std::vector<LayerParameters> const& model, sg::detail::WorkerRules const& rules)
      : link(server.worker(number).link()) {
    link->join(model, rules, told);
  }
  Worker(Worker const&) = delete;
  Worker& operator=(Worker const&) = delete;
  ~Worker() { link->leave(); }

  void begin_and_read(std::size_t layers) {
    told.last.clear();
    told.failed = false;
    link->begin();
    Values values;
    for (std::size_t l = 0; l < layers; ++l) link->read(l, values.bytes());
  }
  void push(std::size_t layer) {
    Values one;
    one.padded[0] = 1;
    link->push(layer, one.bytes(), true);
    link->ask(layer, sg::detail::all_rounds);
  }
  float take_last(std::size_t layer) {
    Values values;
    link->take(layer, sg::detail::all_rounds, values.bytes());
    return values.first();
  }
  /// A push within a stream, to the only layer.
  /// @param needs  pushes of every worker that the next weights contain
  /// @return whether it has them
  bool step(std::uint32_t needs) {
    Values one;
    one.padded[0] = 1;
    link->push(0, one.bytes(), false);
    told.answers = 0;
    link->ask(0, needs);
    return told.answers == 1;
  }
  void fail() { link->end(std::make_exception_ptr(std::runtime_error("out of ink"))); }
};

/// Worker 0 in two processes, of which the first runs the layer, and worker 1 in one.
struct Processes {
  sg::collective::detail::ServerInProcess server{{.workers = 2}, 2};
  Told told[3];
  int first = join(0, 0);
  int second = join(0, 1);
  int other = join(1, 0);
  float newest = 0;

  Processes() = default;
  Processes(Processes const&) = delete;
  Processes& operator=(Processes const&) = delete;
  ~Processes() {
    for (int const client : {first, second, other}) server.leave(client);
  }
  void begin(std::vector<int> const& clients) {
    Values values;
    for (int const client : clients) {
      server.begin(client);
      server.read(client, 0, values.bytes());
    }
    newest = values.first();
  }
  void push(int client, bool last = true) {
    Values one;
    one.padded[0] = 1;
    server.push(client, 0, one.bytes(), last, {}, true);
    if (last) server.ask(client, 0, {sg::collective::detail::Ask::everything});
  }
  float take_last(int client) {
    Values values;
    server.take(client, 0, sg::collective::detail::Ask::everything, values.bytes());
    return values.first();
  }
  void end(std::vector<int> const& clients) {
    for (int const client : clients) server.end(client, false);
  }

 private:
  int join(int worker, int process) {
    auto const model = model_of(1);
    sg::List<std::uint64_t> digests;
    digests.push_back(sg::collective::detail::values_digest(model[0].values()));
    auto rules = changes();
    rules.process = process;
    rules.processes = worker == 0 ? 2 : 1;
    return server.join(worker, model, digests, rules, told[2 * worker + process]);
  }
};

}  // namespace

TEST_CASE(
    "collective/ParameterServer: a stream that fails when some layers have ended theirs leaves "
    "nothing to the next one",
    "[collective]") {
  sg::collective::ParameterServer const server({.workers = 2});
  auto const model = model_of(2);
  Worker a(server, 0, model, changes());
  Worker b(server, 1, model, changes());
  a.begin_and_read(2);
  b.begin_and_read(2);
  for (Worker* each : {&a, &b}) each->push(1);  // which is complete, layer 0 is not
  a.link->end(std::make_exception_ptr(std::runtime_error("out of ink")));
  REQUIRE(b.told.failed);
  for (int stream = 0; stream < 3; ++stream) {
    a.begin_and_read(2);
    b.begin_and_read(2);
    for (std::size_t l = 0; l < 2; ++l) {
      a.push(l);
      CHECK(a.told.last.size() == l);  // the other's push of this layer is to come
      b.push(l);
      CHECK(a.told.last.size() == l + 1);
      CHECK(b.told.last.size() == l + 1);
      float const before = l == 1 ? 2.0F : 0.0F;
      for (Worker* each : {&a, &b})
        CHECK(each->take_last(l) == before + 2 * static_cast<float>(stream + 1));
    }
    a.link->end(nullptr);
    b.link->end(nullptr);
  }
}

TEST_CASE("collective/ParameterServer: has places for the processes that its workers may run in",
          "[collective]") {
  sg::collective::ParameterServer const server({.workers = 2});
  auto const model = model_of(1);
  for (int const process : {-1, 1, 0x3fffffff, 0x7fffffff}) {
    CAPTURE(process);
    auto rules = changes();
    rules.process = process;
    rules.processes = 0x7fffffff;
    CHECK_THROWS_WITH(Worker(server, 0, model, rules),
                      Catch::Matchers::Contains("worker 0 joins as process"));
  }
  Worker(server, 0, model, changes());
}

TEST_CASE("collective/ParameterServer: the others go on without a worker that goes between streams",
          "[collective]") {
  sg::collective::ParameterServer const server(
      {.workers = 2, .on_failure = sg::collective::OnFailure::go_on});
  auto const model = model_of(1);
  Worker a(server, 0, model, changes());
  for (float stream = 0; stream < 2; ++stream) {
    {
      Worker const b(server, 1, model, changes());
    }
    a.begin_and_read(1);
    a.push(0);
    CHECK(a.told.last.size() == 1);
    CHECK(a.take_last(0) == 3 * stream + 1);
    a.link->end(nullptr);
    Worker b(server, 1, model, changes());
    a.begin_and_read(1);
    b.begin_and_read(1);
    a.push(0);
    CHECK(a.told.last.empty());  // it has come back
    b.push(0);
    CHECK(a.told.last.size() == 1);
    a.link->end(nullptr);
    b.link->end(nullptr);
  }
}

TEST_CASE(
    "collective/ServerInProcess: a process of a worker may begin a stream when another one of it "
    "has pushed all that it will",
    "[collective]") {
  Processes on;
  on.begin({on.other, on.first});
  on.push(on.first);
  on.server.begin(on.second);
  on.push(on.other);
  CHECK(on.take_last(on.first) == 2);
  on.end({on.first, on.second, on.other});
  on.begin({on.first});  // the next stream
}

TEST_CASE(
    "collective/ParameterServer: a worker comes back into one stream, not into two that follow "
    "each other",
    "[collective]") {
  sg::collective::ParameterServer const server(
      {.workers = 2, .on_failure = sg::collective::OnFailure::go_on});
  auto const model = model_of(2);
  Worker a(server, 0, model, changes());
  Worker b(server, 1, model, changes());
  a.begin_and_read(2);
  b.begin_and_read(2);
  b.link->end(std::make_exception_ptr(std::runtime_error("out of ink")));
  a.push(0);
  CHECK(a.told.last.size() == 1);  // b is gone, so this layer's stream has ended
  b.link->begin();
  CHECK_FALSE(b.link->begins());
  CHECK(b.link->waits_for() == "worker 0, which has made 0 pushes");  // of the other layer
  a.push(1);
  CHECK(a.told.last.size() == 2);
  CHECK(b.link->begins());
  a.link->end(nullptr);
  a.begin_and_read(2);
  Values values;
  for (std::size_t l = 0; l < 2; ++l) b.link->read(l, values.bytes());
  CHECK(values.first() == 1);
  for (std::size_t l = 0; l < 2; ++l) {
    a.push(l);
    CHECK(a.told.last.size() == l);
    b.push(l);
    CHECK(a.told.last.size() == l + 1);
  }
}

TEST_CASE(
    "collective/ParameterServer: who joins again while others end a stream is waited for in the "
    "next",
    "[collective]") {
  auto const model = model_of(3);
  enum When { before, amid, behind };  // the end of that stream, it begins its own
  for (When const when : {before, amid, behind})
    for (bool const fails : {false, true}) {
      CAPTURE(when, fails);
      sg::collective::ParameterServer const server({.workers = 2});
      Worker a(server, 0, model, changes());
      {
        Worker const b(server, 1, model, changes());
      }
      a.begin_and_read(3);
      a.push(2);
      CHECK(a.told.last.size() == 1);
      Worker b(server, 1, model, changes());
      if (when == before) b.link->begin();
      CHECK(b.link->begins() == (when != before));
      a.push(1);
      if (when == amid) b.link->begin();
      CHECK(b.link->begins() == (when == behind));
      if (fails) {
        a.fail();
        CHECK(b.told.failed == (when != behind));
      } else {
        a.push(0);
        CHECK(a.told.last.size() == 3);  // of that stream nobody waits for it
        a.link->end(nullptr);
      }
      CHECK(b.link->begins());
      a.begin_and_read(3);
      for (std::size_t l = 3; l-- > 0;) a.push(l);
      CHECK(a.told.last.empty());
      if (when == behind || fails) b.link->begin();
      for (std::size_t l = 3; l-- > 0;) b.push(l);
      CHECK(a.told.last.size() == 3);
      CHECK(b.told.last.size() == 3);
      CHECK(a.take_last(0) == (fails ? 2 : 3));
      CHECK(b.take_last(0) == (fails ? 2 : 3));
    }
}

TEST_CASE(
    "collective/ParameterServer: in virtual time no worker comes back while others end a stream",
    "[collective]") {
  for (auto const on_failure :
       {sg::collective::OnFailure::fail_fast, sg::collective::OnFailure::go_on}) {
    sg::collective::ParameterServer const server({.workers = 2, .on_failure = on_failure});
    auto const model = model_of(2);
    int const clock = 0;
    auto rules = changes();
    rules.clock = &clock;
    Worker a(server, 0, model, rules);
    {
      Worker const b(server, 1, model, rules);
    }
    a.begin_and_read(2);
    a.push(1);
    Worker b(server, 1, model, rules);
    CHECK_THROWS_WITH(b.link->begin(),
                      Catch::Matchers::Contains("worker 1 comes back while others end their "
                                                "streams, which it cannot wait for in virtual"));
    b.fail();
    CHECK_FALSE(a.told.failed);
    a.push(0);
    a.link->end(nullptr);
    a.begin_and_read(2);
    b.begin_and_read(2);
    for (std::size_t l = 2; l-- > 0;) a.push(l);
    CHECK(a.told.last.empty());
    for (std::size_t l = 2; l-- > 0;) b.push(l);
    CHECK(b.told.last.size() == 2);
  }
}

TEST_CASE(
    "collective/ServerInProcess: a process of a worker begins a stream while another one of it is "
    "in the last",
    "[collective]") {
  Processes on;
  on.server.begin(on.second);
  on.begin({on.first, on.other});
  on.push(on.first);
  on.push(on.other);
  REQUIRE(on.told[0].last.size() == 1);
  on.end({on.first});
  on.begin({on.first});  // the second process has not ended the stream before yet
  CHECK(on.newest == 2);
  on.end({on.second});
  on.server.begin(on.second);
  on.end({on.other});
  on.begin({on.other});
  on.push(on.first);
  CHECK(on.told[0].last.size() == 1);  // the other's push is to come
  on.push(on.other);
  CHECK(on.told[0].last.size() == 2);
  CHECK(on.take_last(on.first) == 4);
}

TEST_CASE(
    "collective/ServerInProcess: what a process that runs no layer says of a stream may come when "
    "that has ended",
    "[collective]") {
  Processes on;
  on.begin({on.first, on.other});
  on.push(on.first);
  on.push(on.other);
  on.end({on.first, on.other});
  on.server.begin(on.second);
  on.end({on.second});
  on.server.begin(on.second);
  on.begin({on.other});
  on.push(on.other);
  CHECK(on.told[2].last.size() == 1);  // the first process has yet to begin the next stream
  on.begin({on.first});
  on.push(on.first);
  CHECK(on.told[2].last.size() == 2);
  CHECK(on.take_last(on.other) == 4);
}

TEST_CASE(
    "collective/ServerInProcess: a process begins no stream while others go on in a layer that it "
    "runs",
    "[collective]") {
  Processes on;
  on.begin({on.first, on.other});
  on.push(on.first);
  on.end({on.first});
  CHECK_THROWS_WITH(on.begin({on.first}),
                    Catch::Matchers::Contains("worker 0 has ended its steps, and others go on"));
}

TEST_CASE(
    "collective/ServerInProcess: what a process that runs no layer says of a stream may come when "
    "that has failed",
    "[collective]") {
  Processes on;
  on.begin({on.first, on.other});
  on.server.end(on.other, true);
  REQUIRE(on.told[0].failed);
  on.told[0].failed = false;
  on.begin({on.first, on.other});
  on.server.begin(on.second);  // the stream that failed
  on.server.end(on.second, true);
  CHECK_FALSE(on.told[0].failed);
  CHECK_FALSE(on.told[2].failed);
  on.push(on.first);
  on.push(on.other);
  CHECK(on.take_last(on.first) == 2);
}

TEST_CASE(
    "collective/ServerInProcess: a process ends the layers that it runs, whatever others of its "
    "worker do",
    "[collective]") {
  Processes on;
  on.server.begin(on.second);
  on.begin({on.first, on.other});
  on.push(on.first, false);
  on.push(on.other, false);
  on.end({on.first, on.other});
  on.begin({on.first, on.other});
  CHECK(on.newest == 2);
  on.end({on.second});
  on.push(on.first);
  CHECK(on.told[0].last.empty());
  on.push(on.other);
  CHECK(on.take_last(on.first) == 4);
}

TEST_CASE("collective/ServerInProcess: who has ended a stream is told of no failure afterwards",
          "[collective]") {
  struct Ends final : sg::detail::ParameterListener {
    sg::collective::detail::ServerInProcess* server = nullptr;
    int client = 0;
    std::future<bool> ended{};
    Told told{};
    void arrived(std::size_t, std::uint32_t) noexcept override {}
    void lost(std::exception_ptr) noexcept override {
      ended = std::async(std::launch::async, [this] {
        server->end(client, false);
        return told.failed;
      });
      ended.wait_for(std::chrono::milliseconds(20));  // an end that waits for nothing is over then
    }
  };
  sg::collective::detail::ServerInProcess server({.workers = 3});
  auto const model = model_of(1);
  sg::List<std::uint64_t> digests;
  digests.push_back(sg::collective::detail::values_digest(model[0].values()));
  Ends first{};
  Told last{};
  int const fails = server.join(2, model, digests, changes(), last);
  int const hears = server.join(0, model, digests, changes(), first);
  first.server = &server;
  first.client = server.join(1, model, digests, changes(), first.told);
  for (int const client : {hears, first.client, fails}) server.begin(client);
  server.end(fails, true);
  bool const told_when_ended = first.ended.get();
  CHECK(first.told.failed == told_when_ended);
  for (int const client : {hears, first.client, fails}) server.leave(client);
}

TEST_CASE("collective/ParameterServer: who does not wait as its staleness model does is refused",
          "[collective]") {
  auto const model = model_of(1);
  Values one;
  for (auto const adds : {sg::staleness::Adds::in_worker_order, sg::staleness::Adds::in_turn})
    for (std::uint32_t const ahead : {1U, 3U, 12U}) {
      CAPTURE(ahead);
      sg::collective::ParameterServer const server({.workers = 2});
      auto rules = changes();
      rules.adds = adds;
      rules.ahead = ahead;
      Worker a(server, 1, model, rules);
      Worker b(server, 0, model, rules);
      for (Worker* each : {&a, &b}) each->begin_and_read(1);
      std::uint32_t made = 0;
      for (; made < ahead; ++made) a.link->push(0, one.bytes(), false);
      for (int of_b = 0; of_b < 2; ++of_b) {
        REQUIRE_THROWS_WITH(
            a.link->push(0, one.bytes(), false),
            Catch::Matchers::StartsWith(sg::text("worker 1 makes push ", made + 1,
                                                 " of layer 0 without waiting for the other")));
        b.link->push(0, one.bytes(), false);
        a.link->push(0, one.bytes(), false);
        ++made;
      }
    }
  sg::collective::ParameterServer const server({.workers = 2});
  auto rules = changes();
  rules.adds = sg::staleness::Adds::on_arrival;  // nothing waits
  Worker a(server, 0, model, rules);
  Worker b(server, 1, model, rules);
  for (Worker* each : {&a, &b}) each->begin_and_read(1);
  for (int i = 0; i < 100; ++i) a.link->push(0, one.bytes(), false);
}

namespace {

using sg::collective::OnFailure;
using sg::staleness::Adds;

/// Workers take a step each. If pushes are not added in turn, each waits for those after it.
/// @param needs  [workers] pushes of every worker, counted from the beginning of its stream
void step_of(std::vector<Worker*> const& all, Adds adds, std::vector<std::uint32_t> const& needs,
             std::string const& last) {
  for (std::size_t n = 0; n < all.size(); ++n) {
    bool const there = all[n]->step(adds == Adds::in_turn ? 0 : needs[n]);
    if (adds == Adds::in_turn) continue;
    CHECK(there == (n + 1 == all.size()));
    if (n + 2 == all.size())
      CHECK_THAT(all[0]->link->waits_for(), Catch::Matchers::StartsWith(last));
  }
  for (Worker* each : all) CHECK(each->told.answers == 1);
}

}  // namespace

TEST_CASE(
    "collective/ParameterServer: who has left is not waited for, whatever fails before or after",
    "[collective]") {
  auto const model = model_of(1);
  for (auto const adds : {Adds::in_worker_order, Adds::on_arrival, Adds::in_turn})
    for (auto const on_failure : {OnFailure::fail_fast, OnFailure::go_on})
      for (std::string const happens : {"L", "LF", "FL", "LFF", "FLF"}) {
        bool const fast = on_failure == OnFailure::fail_fast;
        CAPTURE(static_cast<int>(adds), fast, happens);
        sg::collective::ParameterServer const server({.workers = 3, .on_failure = on_failure});
        auto rules = changes();
        rules.adds = adds;
        auto leaver = std::make_unique<Worker>(server, 0, model, rules);
        Worker first(server, 1, model, rules);
        Worker second(server, 2, model, rules);
        for (Worker* each : {leaver.get(), &first, &second}) each->begin_and_read(1);
        step_of({leaver.get(), &first, &second}, adds, {1, 1, 1}, "worker 2, which has made 0 ");
        std::uint32_t of_first = 1;
        std::uint32_t of_second = 1;
        bool out = false;  // the first worker must begin again
        auto const begin = [&] {
          if (std::exchange(out, false)) first.begin_and_read(1), of_first = 0;
          if (second.told.failed) second.begin_and_read(1), of_second = 0;
        };
        for (char const what : happens) {
          if (what == 'L') {
            if (!leaver->told.failed) leaver->link->end(nullptr);
            leaver = nullptr;
          } else {
            begin();
            first.fail();
            out = true;
            CHECK(second.told.failed == fast);
          }
        }
        begin();
        for (std::uint32_t step = 1; step <= 3; ++step)
          step_of({&first, &second}, adds, {++of_first, ++of_second},
                  sg::text("worker 2, which has made ", step));

        // It joins again, and is waited for: at once, or as soon as it begins.
        Worker back(server, 0, model, rules);
        if (!fast) back.begin_and_read(1);
        bool const turns = adds == Adds::in_turn;
        CHECK((turns || !first.step(++of_first)));
        CHECK((turns || !second.step(++of_second)));
        if (!turns) CHECK(first.link->waits_for() == "worker 0, which has made 1 push");
        if (fast) back.begin_and_read(1);
        back.step(turns ? 0 : 1);
        if (turns) first.step(0), second.step(0);
        for (Worker* each : {&back, &first, &second}) CHECK(each->told.answers == 1);
      }
}

TEST_CASE("collective/ParameterServer: who leaves between two streams is in none of the next ones",
          "[collective]") {
  auto const model = model_of(2);
  for (auto const adds : {Adds::in_worker_order, Adds::on_arrival})
    for (auto const on_failure : {OnFailure::fail_fast, OnFailure::go_on})
      for (bool fails : {false, true}) {
        CAPTURE(static_cast<int>(adds), on_failure == OnFailure::go_on, fails);
        sg::collective::ParameterServer const server({.workers = 3, .on_failure = on_failure});
        auto rules = changes();
        rules.adds = adds;
        Worker first(server, 1, model, rules);
        Worker second(server, 2, model, rules);
        auto const stream = [&](std::vector<Worker*> const& all) {
          for (Worker* each : all) each->begin_and_read(2);
          if (all.size() == 2 && std::exchange(fails, false)) first.fail(), first.begin_and_read(2);
          if (second.told.failed) second.begin_and_read(2);
          for (std::size_t l = 0; l < 2; ++l)
            for (Worker* each : all) each->push(l);
          for (Worker* each : all) {
            CHECK(each->told.last.size() == 2);
            each->link->end(nullptr);
          }
        };
        {
          Worker leaver(server, 0, model, rules);
          stream({&leaver, &first, &second});
        }
        stream({&first, &second});
        stream({&first, &second});
        Worker back(server, 0, model, rules);
        stream({&back, &first, &second});
      }
}

TEST_CASE("collective/ParameterServer: a fast worker that comes back counts from the slowest on",
          "[collective]") {
  auto const model = model_of(1);
  for (std::uint32_t const ahead : {1U, 10U})
    for (bool const bounded : {false, true}) {
      CAPTURE(ahead, bounded);
      sg::collective::ParameterServer const server({.workers = 2, .on_failure = OnFailure::go_on});
      auto rules = changes();
      rules.adds = Adds::on_arrival;
      rules.ahead = sg::detail::WorkerRules::unlimited;
      Worker fast(server, 0, model, rules);
      Worker slow(server, 1, model, rules);
      for (Worker* each : {&fast, &slow}) each->begin_and_read(1);
      auto const needs = [&](std::uint32_t step) {
        return bounded && step > ahead ? step - ahead : 0;
      };
      REQUIRE(slow.step(0));
      for (std::uint32_t step = 1; step <= 1 + ahead; ++step) REQUIRE(fast.step(needs(step)));
      for (int times = 0; times < 2; ++times) {
        fast.fail();
        fast.begin_and_read(1);
        // It is where the slow one is, and so may be as far ahead of it as ever.
        for (std::uint32_t step = 1; step <= ahead; ++step) CHECK(fast.step(needs(step)));
        CHECK(fast.step(needs(ahead + 1)) != bounded);
        if (bounded) {
          CHECK(fast.link->waits_for().starts_with("worker 1, which has made "));
          slow.step(0);
          CHECK(fast.told.answers == 1);
        }
      }
      // The slow one waits for nobody.
      for (std::uint32_t step = 2; step < 5; ++step) CHECK(slow.step(1));
    }
}

TEST_CASE("collective/ParameterServer: an error counts the pushes that a worker has made",
          "[collective]") {
  auto const model = model_of(1);
  sg::collective::ParameterServer const server({.workers = 2});
  Worker a(server, 0, model, changes());
  CHECK(a.link->waits_for().empty());
  a.begin_and_read(1);
  CHECK_FALSE(a.step(1));
  CHECK(a.link->waits_for() == "worker 1, which has not joined");
  Worker b(server, 1, model, changes());
  CHECK(a.link->waits_for() == "worker 1, which has made 0 pushes");
  b.begin_and_read(1);
  b.fail();  // the push of worker 0 is added, and all begin from there
  for (Worker* each : {&a, &b}) each->begin_and_read(1);
  CHECK_FALSE(a.step(1));
  CHECK(a.link->waits_for() == "worker 1, which has made 0 pushes");
}

TEST_CASE("collective/ParameterServer: weights that overflow are undone, and training goes on",
          "[collective]") {
  using sg::collective::OnFailure;
  using sg::staleness::Adds;
  auto const adds = GENERATE(Adds::on_arrival, Adds::in_worker_order, Adds::in_turn);
  auto const on_failure = GENERATE(OnFailure::fail_fast, OnFailure::go_on);
  CAPTURE(static_cast<int>(adds), static_cast<int>(on_failure));
  auto const model = model_of(2);
  sg::collective::ParameterServer const server({.workers = 2, .on_failure = on_failure});
  auto rules = changes();
  rules.adds = adds;
  rules.ahead = 3;
  Worker a(server, 0, model, rules);
  Worker b(server, 1, model, rules);
  Values large;
  large.padded[0] = 3e38F;
  auto const read = [](Worker& worker) {
    Values values;
    worker.link->read(0, values.bytes());
    return values.first();
  };
  for (Worker* each : {&a, &b}) each->begin_and_read(2);
  for (Worker* each : {&a, &b}) {
    each->told.answers = 0;
    each->link->ask(1, 5);  // which nobody will have
    each->link->ask(0, 1);  // which is there once the step has been undone
  }
  a.link->push(0, large.bytes(), false);
  CHECK_FALSE(a.told.failed);
  b.link->push(0, large.bytes(), false);
  // Who is told: whose push it was, all of the round, or all.
  bool const all = on_failure == OnFailure::fail_fast || adds == Adds::in_worker_order;
  CHECK(a.told.failed == all);
  CHECK(b.told.failed);
  CHECK_THAT(b.told.words,
             Catch::Matchers::Contains("layer 0") && Catch::Matchers::Contains("not finite"));
  // Nobody goes on from weights that lack its push.
  for (Worker* each : {&a, &b}) CHECK(each->told.answers == (each->told.failed ? 0 : 1));
  for (Worker* each : {&a, &b})
    if (each->told.failed) each->link->end(std::make_exception_ptr(std::runtime_error("told")));
  if (!all) {  // the other goes on, alone
    Values one;
    one.padded[0] = -1e38F;
    a.link->push(0, one.bytes(), false);
    CHECK_FALSE(a.told.failed);
    a.link->end(nullptr);
  }
  float const before = adds == Adds::in_worker_order ? 0.0F : all ? 3e38F : 3e38F - 1e38F;
  for (Worker* each : {&a, &b}) {
    each->begin_and_read(2);
    CHECK(read(*each) == before);
  }
  large.padded[0] = -1e38F;
  for (Worker* each : {&a, &b}) each->link->push(0, large.bytes(), true);
  for (Worker* each : {&a, &b}) each->link->push(1, large.bytes(), true);
  for (Worker* each : {&a, &b}) each->link->end(nullptr);
  a.begin_and_read(2);
  CHECK(read(a) == before - 1e38F - 1e38F);
  CHECK_FALSE(a.told.failed);
}

}  // namespace parameter_server_test
