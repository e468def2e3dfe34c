// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/remote_link.hpp>
#include <stagger/collective/server_connection.hpp>

#include "catch.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <stagger/engine/setup.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

#include "temporary_folder.hpp"

namespace remote_link_test {

namespace {

namespace sg = stagger;
namespace remote = sg::collective::detail;
using remote::Message;
using Kind = remote::MessageKind;
using sg::collective::OnFailure;

constexpr sg::optimizer::Sgd sgd{};
using Late = sg::staleness::OverlappedSynchronous<sg::staleness::overlapped::GradientNorm,
                                                  sg::staleness::overlapped::FirstFit,
                                                  sg::staleness::overlapped::ShareLate>;

struct Told final : sg::detail::ParameterListener {
  int arrivals = 0;
  std::uint32_t rounds = 0;  // of the last one
  std::string failure{};
  void arrived(std::size_t, std::uint32_t contained) noexcept override {
    ++arrivals;
    rounds = contained;
  }
  void lost(std::exception_ptr why) noexcept override {
    try {
      std::rethrow_exception(why);
    } catch (std::exception const& error) {
      failure = error.what();
    }
  }
};

struct Server {
  std::shared_ptr<remote::ServerInProcess> in_process;
  remote::RemoteRules rules{};
  Late model{.budget = {0.5}};  // where layers may be late
  /// @param durable  a folder, or empty
  explicit Server(OnFailure on_failure, bool late = false, std::string const& durable = "")
      : in_process(std::make_shared<remote::ServerInProcess>(sg::collective::ServerOptions{
            .workers = 2, .on_failure = on_failure, .durable = durable})) {
    rules.optimizer = sg::detail::optimizer_call<false>(sgd);
    rules.model_bytes = 1U << 16U;
    if (!late) return;
    rules.late = sg::detail::late_calls_of<Late>;
    rules.late_policy = &model;
  }
};

/// A worker's connection: messages go when the worker waits, or when the test says so.
struct Wire {
  Wire(remote::MessageEnd& to, Server& server)
      : worker(&to), connection(server.in_process, server.rules) {
    connection.carried_by(nowhere);
  }
  /// @return whether there was one
  bool carry(remote::MessageEnd& from, remote::MessageEnd& to) {
    Message message;
    std::span<std::byte const> payload;
    if (!from.next(message, payload)) return false;
    said.push_back(message.kind);
    if (message.kind == lost) return true;
    deliver(to, message, payload);
    return true;
  }
  /// What the server has to say is under way from now on.
  void dispatch() {
    Message message;
    std::span<std::byte const> payload;
    while (connection.next(message, payload))
      under_way.emplace_back(message, std::vector<std::byte>(payload.begin(), payload.end()));
  }
  /// Carries all, or only the first message of the server that is under way.
  void carry_some() {
    if (under_way.empty()) return carry_all();
    auto const [message, payload] = under_way.front();
    under_way.erase(under_way.begin());
    deliver(*worker, message, payload);
  }
  void carry_all() {
    for (auto const& [message, payload] : std::exchange(under_way, {}))
      deliver(*worker, message, payload);
    while (worker != nullptr && (carry(*worker, connection) || carry(connection, *worker))) {
    }
  }
  void lose() {
    worker = nullptr;
    connection.gone(nullptr);
  }
  static void deliver(remote::MessageEnd& to, Message const& message,
                      std::span<std::byte const> payload) {
    auto const buffer = to.payload_buffer(message);
    std::copy(payload.begin(), payload.end(), buffer.begin());
    to.received(message);
  }

  struct Nowhere final : remote::Transport {
    void wake() noexcept override {}
    void close() noexcept override {}
  };
  remote::MessageEnd* worker;
  Nowhere nowhere;
  remote::ServerConnection connection;
  std::vector<Kind> said{};
  Kind lost{};  // messages of this kind do not arrive
  std::vector<std::pair<Message, std::vector<std::byte>>> under_way{};
};

/// A worker with a layer of one number, or with several.
struct Worker {
  struct Connector final : remote::Connector {
    explicit Connector(Worker& worker) : of(worker) {}
    std::unique_ptr<remote::Transport> connect(remote::MessageEnd& end) override {
      struct Handle final : remote::Transport {
        explicit Handle(std::shared_ptr<Wire> made) : wire(std::move(made)) {}
        void wake() noexcept override {}
        void close() noexcept override {
          while (wire->worker != nullptr && wire->carry(*wire->worker, wire->connection)) {
          }
          wire->worker = nullptr;
        }
        std::shared_ptr<Wire> wire;
      };
      of.wire = std::make_shared<Wire>(end, of.server);
      return std::make_unique<Handle>(of.wire);
    }
    [[nodiscard]] double deadline_s() const override { return of.deadline_s; }
    [[nodiscard]] std::string name() const override { return "the test"; }
    void wait(std::unique_lock<std::mutex>& lock, std::condition_variable&, double) const override {
      lock.unlock();
      of.wire->carry_some();
      lock.lock();
    }
    Worker& of;
  };

  Worker(Server& to, int number, sg::staleness::Adds adds = sg::staleness::Adds::in_worker_order,
         sg::staleness::Pushes of_late = sg::staleness::Pushes::gradients, std::size_t layers = 1)
      : server(to), link(std::make_unique<Connector>(*this), number), model(layers) {
    sg::detail::ParameterDeclaration d;
    d.name = "w";
    d.type = sg::ElementType::f64;
    d.size = 1;
    d.initial.assign(sizeof(double), std::byte{0});
    for (std::size_t l = 0; l < layers; ++l) {
      sg::List<sg::detail::ParameterDeclaration> declared;
      declared.push_back(d);
      model[l].adopt(std::move(declared), static_cast<int>(l), 0);
    }
    bytes.resize(model[0].bytes_of_values());
    sg::detail::WorkerRules rules;
    rules.adds = adds;
    rules.optimizer = sg::detail::optimizer_call<true>(sgd);
    rules.late = server.rules.late;
    rules.late_policy = server.rules.late_policy;
    if (rules.late != nullptr) rules.pushes = of_late;
    link.join(model, rules, told);
  }
  Worker(Worker const&) = delete;
  Worker& operator=(Worker const&) = delete;

  void begin_and_read() {
    link.begin();
    link.read(0, bytes.data());
  }
  [[nodiscard]] double value() const {
    double first = 0;
    std::memcpy(&first, bytes.data(), sizeof(first));
    return first;
  }
  /// It is not carried yet.
  void push(double number, bool last = false) {
    std::memcpy(bytes.data(), &number, sizeof(number));
    link.push(0, bytes.data(), last);
  }
  /// What it says arrives, and what the server answers is under way.
  void say() {
    while (wire->carry(*wire->worker, wire->connection)) {
    }
    wire->dispatch();
  }
  /// A message of this worker that its link has not sent.
  void slip_in(Message message, double number = 0) {
    std::vector<std::byte> payload(message.bytes);
    if (message.bytes != 0) std::memcpy(payload.data(), &number, sizeof(number));
    Wire::deliver(wire->connection, message, payload);
    wire->carry_all();
  }
  [[nodiscard]] Message push_message(std::uint32_t stream, std::uint64_t number) const {
    return {.kind = Kind::push, .stream = stream, .number = number, .bytes = bytes.size()};
  }

  Server& server;
  double deadline_s = 60;
  std::shared_ptr<Wire> wire;
  Told told{};
  remote::RemoteLink link;
  std::vector<sg::detail::LayerParameters> model;
  std::vector<std::byte> bytes{};
};

std::ptrdiff_t times_said(Worker const& worker, Kind kind) {
  auto const& all = worker.wire->said;
  return std::count(all.begin(), all.end(), kind);
}
bool said(Worker const& worker, Kind kind) { return times_said(worker, kind) != 0; }

}  // namespace

TEST_CASE("collective/RemoteLink: what was waited for in vain is not requested again",
          "[collective]") {
  TemporaryFolder const folder;
  Server server(OnFailure::go_on, false, folder.path());
  Worker a(server, 0);
  a.link.begin();
  a.wire->lost = Kind::newest;
  a.deadline_s = 0;
  CHECK_THROWS_WITH(a.link.read(0, a.bytes.data()),
                    Catch::Matchers::Contains("has not sent its weights"));
  a.deadline_s = 60;
  a.link.end(std::make_exception_ptr(sg::Error(sg::Errc::io, "out of ink")));
  a.link.begin();  // over another connection
  a.wire->carry_all();
  CHECK_FALSE(said(a, Kind::read));
  a.link.read(0, a.bytes.data());
  CHECK(said(a, Kind::read));
}

TEST_CASE("collective/RemoteLink: nothing is repeated a second time", "[collective]") {
  TemporaryFolder const folder;
  Server server(OnFailure::fail_fast, false, folder.path());
  Worker a(server, 0);
  a.begin_and_read();
  auto const pushes = [&] {
    auto const& all = a.wire->said;
    return std::count(all.begin(), all.end(), Kind::push);
  };
  a.wire->lost = Kind::pushed;
  a.push(1);
  a.wire->carry_all();
  double const factor = 1;
  Wire::deliver(*a.wire->worker,
                {.kind = Kind::joined,
                 .layer = 2,
                 .rounds = 1,
                 .number = server.in_process->layers().record().run,
                 .bytes = sizeof(double)},
                std::as_bytes(std::span(&factor, 1)));
  a.wire->carry_all();
  CHECK(pushes() == 1);
}

TEST_CASE("collective/RemoteLink: a push that comes behind a failure is not acknowledged",
          "[collective]") {
  Server server(OnFailure::fail_fast);
  Worker a(server, 0);
  Worker b(server, 1);
  a.begin_and_read();
  b.begin_and_read();
  a.push(1);
  b.push(2);
  b.wire->carry_all();
  b.wire->lose();  // what it has pushed stays, and all have made one push now
  a.wire->carry_all();
  CHECK_FALSE(said(a, Kind::pushed));
  CHECK(a.told.failure.find("worker 1 has failed") == 0);
  a.begin_and_read();
  CHECK(a.value() == 2);
}

TEST_CASE("collective/RemoteLink: what comes too late for its stream is dropped", "[collective]") {
  Server server(OnFailure::go_on);
  Worker a(server, 0);
  Worker b(server, 1);
  a.begin_and_read();
  a.link.end(std::make_exception_ptr(sg::Error(sg::Errc::io, "out of ink")));
  a.begin_and_read();
  a.slip_in(a.push_message(1, 1), 5);
  a.slip_in({.kind = Kind::end, .stream = 1});
  a.push(1);
  a.wire->carry_all();
  CHECK(said(a, Kind::pushed));
  b.begin_and_read();
  b.push(2);
  b.link.ask(0, 1);
  b.wire->carry_all();
  REQUIRE(b.told.arrivals == 1);
  b.link.take(0, 1, b.bytes.data());
  CHECK(b.value() == 3);
}

TEST_CASE("collective/RemoteLink: what comes before its stream ends the connection",
          "[collective]") {
  Server server(OnFailure::go_on);
  Worker a(server, 0);
  a.begin_and_read();
  char const* const words = "of worker 0 is of stream 2, where the last one to begin was 1";
  CHECK_THROWS_WITH(a.slip_in(a.push_message(2, 1)), Catch::Matchers::Contains(words));
  CHECK_THROWS_WITH(a.slip_in({.kind = Kind::read, .stream = 2}), Catch::Matchers::Contains(words));
}

TEST_CASE("collective/RemoteLink: a stream that begins ends the one before it", "[collective]") {
  Server server(OnFailure::fail_fast);
  Worker a(server, 0);
  Worker b(server, 1);
  a.begin_and_read();
  b.begin_and_read();
  a.slip_in({.kind = Kind::begin, .stream = 1});  // once more
  b.wire->carry_all();
  CHECK(b.told.failure.empty());
  a.slip_in({.kind = Kind::begin, .stream = 2});
  b.wire->carry_all();
  CHECK(b.told.failure.find("worker 0 has failed") == 0);
}

TEST_CASE("collective/RemoteLink: takes no answer to another question", "[collective]") {
  Server server(OnFailure::fail_fast);
  Worker a(server, 0);
  a.begin_and_read();
  a.link.ask(0, 2);
  Message message{.kind = Kind::answer, .stream = 1, .rounds = 1, .bytes = a.bytes.size()};
  auto const answer = [&] { Wire::deliver(*a.wire->worker, message, a.bytes); };
  CHECK_THROWS_WITH(answer(), Catch::Matchers::Contains("was not asked for"));
  message.stream = 0;  // of a stream that has ended
  answer();
  CHECK(a.told.arrivals == 0);
  message = {.kind = Kind::last_answer, .stream = 1, .bytes = a.bytes.size()};
  CHECK_THROWS_WITH(answer(), Catch::Matchers::Contains("was not asked for"));
  message = {.kind = Kind::answer, .stream = 1, .rounds = 2, .bytes = a.bytes.size()};
  answer();
  CHECK(a.told.arrivals == 1);
}

TEST_CASE(
    "collective/RemoteLink: on arrival, who asks for more than is under way gets it with one "
    "answer "
    "or with two",
    "[collective]") {
  bool const there = GENERATE(false, true);  // what the worker asks for, when it first asks
  CAPTURE(there);
  Server server(OnFailure::fail_fast);
  Worker a(server, 0, sg::staleness::Adds::on_arrival);
  Worker b(server, 1, sg::staleness::Adds::on_arrival);
  a.begin_and_read();
  b.begin_and_read();
  auto const push_of_b = [&] {
    b.push(2);
    b.wire->carry_all();
  };
  if (there) push_of_b();
  a.push(1);
  a.link.ask(0, 0);
  a.say();
  if (!there) push_of_b();
  a.link.ask(0, 1);
  CHECK_FALSE(a.wire->carry(*a.wire->worker, a.wire->connection));  // one request at a time
  CHECK(a.told.arrivals == 0);
  a.link.take(0, 0, a.bytes.data());
  CHECK(a.value() == 0);  // what it has read
  a.wire->carry_all();
  CHECK(times_said(a, Kind::ask) == (there ? 1 : 2));
  CHECK(a.told.arrivals == 1);  // what lacks the push of b is dropped
  CHECK(a.told.rounds == 1);
  auto const tag = a.link.take(0, 1, a.bytes.data());
  CHECK(std::vector(tag.pushes.begin(), tag.pushes.end()) == std::vector<std::uint32_t>{1, 1});
  CHECK(a.value() == 3);
}

TEST_CASE("collective/RemoteLink: on arrival, is told what an answer contains before it comes",
          "[collective]") {
  Server server(OnFailure::fail_fast);
  Worker a(server, 0, sg::staleness::Adds::on_arrival);
  Worker b(server, 1, sg::staleness::Adds::on_arrival);
  std::uint32_t const counts[] = {5, 7, 9};
  auto const contents = [&](std::uint32_t stream, std::size_t workers) {
    auto const bytes = std::as_bytes(std::span(counts).first(workers));
    Wire::deliver(*a.wire->worker,
                  {.kind = Kind::contents, .stream = stream, .bytes = bytes.size()}, bytes);
  };
  auto const answer = [&] {
    Wire::deliver(*a.wire->worker, {.kind = Kind::answer, .stream = 1, .bytes = a.bytes.size()},
                  a.bytes);
  };
  a.begin_and_read();
  b.begin_and_read();
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(contents(1, 2), Contains("was not asked for"));
  a.link.ask(0, 0);
  CHECK_THROWS_WITH(contents(1, 3), Contains("is not about as many workers"));
  CHECK_THROWS_WITH(answer(), Contains("does not say what it contains"));
  contents(0, 2);  // of a stream that has ended
  CHECK_THROWS_WITH(answer(), Contains("does not say what it contains"));
  contents(1, 2);
  answer();
  auto const tag = a.link.take(0, 0, a.bytes.data());
  CHECK(tag.worker == 0);
  CHECK(std::vector(tag.pushes.begin(), tag.pushes.end()) == std::vector<std::uint32_t>{5, 7});
}

TEST_CASE("collective/ServerConnection: a new stream drops the answer of the one before it",
          "[collective]") {
  Server server(OnFailure::go_on);
  Worker a(server, 0, sg::staleness::Adds::on_arrival);
  a.begin_and_read();
  a.link.ask(0, 0);
  while (a.wire->carry(*a.wire->worker, a.wire->connection)) {
  }
  Message message;
  std::span<std::byte const> payload;
  REQUIRE(a.wire->connection.next(message, payload));
  REQUIRE(message.kind == Kind::contents);  // its answer comes next
  Wire::deliver(a.wire->connection, {.kind = Kind::begin, .stream = 2}, {});
  CHECK_FALSE(a.wire->connection.next(message, payload));
}

TEST_CASE("collective/RemoteLink: on arrival, weights are there until newer ones have arrived",
          "[collective]") {
  Server server(OnFailure::fail_fast);
  Worker a(server, 0, sg::staleness::Adds::on_arrival);
  a.begin_and_read();
  a.push(1);
  a.link.ask(0, 0);
  a.wire->carry_all();
  REQUIRE(a.told.arrivals == 1);  // and not taken
  a.push(2);
  a.link.ask(0, 0);
  a.say();
  CHECK(a.link.take(0, 0, a.bytes.data()).own() == 1);
  CHECK(a.value() == 1);
  // Half of the answer has arrived.
  auto const buffer = a.wire->worker->payload_buffer(a.wire->under_way.back().first);
  std::fill(buffer.begin(), buffer.end(), std::byte{0xff});
  CHECK(a.link.take(0, 0, a.bytes.data()).own() == 1);
  CHECK(a.value() == 1);
  a.wire->carry_all();
  CHECK(a.link.take(0, 0, a.bytes.data()).own() == 2);
  CHECK(a.value() == 3);
}

TEST_CASE("collective/RemoteLink: exchanges memory for a push and for weights", "[collective]") {
  Server server(OnFailure::fail_fast);
  Worker a(server, 0, sg::staleness::Adds::on_arrival);
  a.begin_and_read();
  sg::detail::ParameterBlock pushed, taken;
  for (auto* const block : {&pushed, &taken}) block->make(nullptr, a.bytes.size());
  double const sums[] = {1, 3};  // of the changes 1 and 2
  for (int step = 0; step < 2; ++step) {
    double const change = step + 1;
    std::memcpy(pushed.data(), &change, sizeof(change));
    std::byte const* const given = pushed.data();
    a.link.hand_over(0, pushed);
    CHECK(pushed.data() != given);
    CHECK(pushed.size() == a.bytes.size());
    std::fill(pushed.span().begin(), pushed.span().end(), std::byte{0xff});
    a.link.ask(0, 0);
    a.wire->carry_all();
    REQUIRE(a.told.arrivals == step + 1);
    std::byte const* const before = taken.data();
    CHECK(a.link.take_over(0, 0, taken).own() == static_cast<std::uint32_t>(step) + 1);
    CHECK(taken.data() != before);
    double value = 0;
    std::memcpy(&value, taken.data(), sizeof(value));
    CHECK(value == sums[step]);
  }
}

TEST_CASE("collective/RemoteLink: on arrival, the last weights are asked for behind others",
          "[collective]") {
  Server server(OnFailure::fail_fast);
  Worker a(server, 0, sg::staleness::Adds::on_arrival);
  Worker b(server, 1, sg::staleness::Adds::on_arrival);
  a.begin_and_read();
  b.begin_and_read();
  b.push(2, true);
  b.wire->carry_all();
  a.push(1, true);
  a.link.ask(0, 0);
  a.say();
  a.link.ask(0, sg::detail::all_rounds);
  CHECK_FALSE(a.wire->carry(*a.wire->worker, a.wire->connection));
  a.wire->carry_all();
  CHECK(times_said(a, Kind::ask_last) == 1);
  CHECK(a.told.arrivals == 1);
  a.link.take(0, sg::detail::all_rounds, a.bytes.data());
  CHECK(a.value() == 3);
}

TEST_CASE("collective/RemoteLink: a part of a push that comes behind a failure is dropped",
          "[collective]") {
  Server server(OnFailure::fail_fast, true);
  Worker a(server, 0);
  Worker b(server, 1);
  a.begin_and_read();
  b.begin_and_read();
  b.push(2);
  b.wire->carry_all();
  a.link.push(0, a.bytes.data(), false, {8, a.bytes.size()});
  b.wire->lose();  // all have made one push now
  CHECK_NOTHROW(a.wire->carry_all());
  CHECK(a.told.failure.find("worker 1 has failed") == 0);
  a.begin_and_read();
}

TEST_CASE("collective/RemoteLink: a part of weights may come when their stream has ended",
          "[collective]") {
  Server server(OnFailure::fail_fast, true);
  Worker a(server, 0);
  a.begin_and_read();
  a.link.ask(0, 0, {8, a.bytes.size()});
  REQUIRE(a.wire->carry(*a.wire->worker, a.wire->connection));
  a.wire->dispatch();
  REQUIRE(a.wire->under_way.size() == 1);
  a.link.end(std::make_exception_ptr(sg::Error(sg::Errc::io, "out of ink")));
  CHECK_NOTHROW(a.link.read(0, a.bytes.data()));
  CHECK(a.told.arrivals == 0);
}

TEST_CASE("collective/RemoteLink: parts of a push that do not fit are refused", "[collective]") {
  auto const refused = [](auto body) {
    Server server(OnFailure::fail_fast, true);
    Worker a(server, 0);
    Worker b(server, 1);
    a.begin_and_read();
    b.begin_and_read();
    REQUIRE_THROWS_WITH(body(a, b), Catch::Matchers::Contains("divides push 1 of layer 0 at byte"));
    CHECK(server.in_process->look_at(0, [](auto const& history) { return history.total(); }) == 0);
  };
  auto const push = [](Worker& worker, std::size_t first, std::size_t last) {
    worker.link.push(0, worker.bytes.data(), false, {first, last});
    worker.wire->carry_all();
  };
  std::size_t const all = sg::alignment_bytes;
  refused([&](Worker& a, Worker&) { push(a, 0, 8); });  // the urgent part has not come
  refused([&](Worker& a, Worker&) { push(a, 8, all), push(a, 0, 16); });
  refused([&](Worker& a, Worker&) { push(a, 16, all), push(a, 0, 8); });
  refused([&](Worker& a, Worker& b) { push(a, 8, all), push(b, 16, all); });
  refused([&](Worker& a, Worker&) {
    push(a, 8, all), a.link.push(0, a.bytes.data(), false), a.wire->carry_all();
  });
}

TEST_CASE("collective/RemoteLink: an answer that comes in a later stream is not taken for its own",
          "[collective]") {
  Server server(OnFailure::fail_fast);
  Worker a(server, 0);
  Worker b(server, 1);
  a.begin_and_read();
  b.begin_and_read();
  a.deadline_s = 0;
  CHECK(a.link.waits_for() == "the parameter server at the test, which does not answer");
  a.deadline_s = 60;
  a.say();  // it answers now
  b.wire->lose();
  a.link.end(std::make_exception_ptr(sg::Error(sg::Errc::io, "out of ink")));
  CHECK(a.link.begin_part(sg::detail::any_failures) == 1);
}

TEST_CASE("collective/RemoteLink: refuses late layers of which no gradients are pushed in order",
          "[collective]") {
  using sg::staleness::Adds;
  using sg::staleness::Pushes;
  for (auto const& [pushes, adds] : {std::pair{Pushes::changes, Adds::in_worker_order},
                                     {Pushes::gradients, Adds::on_arrival},
                                     {Pushes::gradients, Adds::in_turn}}) {
    Server server(OnFailure::fail_fast, true);
    CHECK_THROWS_WITH(Worker(server, 0, adds, pushes),
                      Catch::Matchers::Contains("cannot send layers late"));
  }
}

namespace {

/// The server's end of the connection of a worker that has not joined yet.
struct Newcomer {
  struct Bell final : remote::Transport {
    int rings = 0;
    void wake() noexcept override { ++rings; }
    void close() noexcept override {}
  };
  /// It says who it is. The model is one layer of `elements` zeros.
  Newcomer(Server& server, int number, std::size_t elements = 1)
      : bytes((elements * sizeof(double) + 63) / 64 * 64),
        end(std::make_unique<remote::ServerConnection>(server.in_process, server.rules)) {
    auto const model = model_of(elements);
    sg::ByteWriter request;
    remote::JoinRequest::write(request, number, model, rules());
    end->carried_by(bell);
    Wire::deliver(*end, {.kind = Kind::join, .bytes = request.size()},
                  {request.data(), request.size()});
  }
  static std::vector<sg::detail::LayerParameters> model_of(std::size_t elements) {
    std::vector<sg::detail::LayerParameters> model(1);
    sg::List<sg::detail::ParameterDeclaration> declared;
    declared.push_back(
        {.name = "w", .type = sg::ElementType::f64, .size = elements, .initial = {}});
    declared[0].initial.assign(elements * sizeof(double), std::byte{0});
    model[0].adopt(std::move(declared), 0, 0);
    return model;
  }
  static sg::detail::WorkerRules rules() {
    sg::detail::WorkerRules rules;
    rules.optimizer = sg::detail::optimizer_call<true>(sgd);
    return rules;
  }
  /// The kinds of all that the server has to say.
  std::vector<Kind> told() const {
    std::vector<Kind> kinds;
    Message message;
    for (std::span<std::byte const> payload; end->next(message, payload);)
      kinds.push_back(message.kind);
    return kinds;
  }
  void give() const {
    std::vector<std::byte> const zeros(bytes);
    Wire::deliver(*end, {.kind = Kind::values, .bytes = bytes}, zeros);
  }

  std::size_t bytes;
  Bell bell{};
  std::unique_ptr<remote::ServerConnection> end;
};
using Kinds = std::vector<Kind>;

}  // namespace

TEST_CASE("collective/ServerConnection: one worker at a time is asked for first values",
          "[collective]") {
  Server server(OnFailure::fail_fast);
  Newcomer a(server, 0);
  auto b = std::make_unique<Newcomer>(server, 1);
  CHECK(a.told() == Kinds{Kind::wanted});
  CHECK(b->told().empty());
  SECTION("the others join when they are there") {
    int const before = b->bell.rings;
    a.give();
    CHECK(a.told() == Kinds{Kind::joined});
    CHECK(b->bell.rings > before);
    CHECK(b->told() == Kinds{Kind::joined});
  }
  SECTION("the next one is asked when the first has gone") {
    int const before = b->bell.rings;
    a.end = nullptr;
    CHECK(b->bell.rings > before);
    CHECK(b->told() == Kinds{Kind::wanted});
    b->give();
    CHECK(b->told() == Kinds{Kind::joined});
  }
  SECTION("one that waits may go") {
    b = nullptr;
    a.give();
    CHECK(a.told() == Kinds{Kind::joined});
  }
  SECTION("one that is not asked may not give any") {
    CHECK_THROWS_WITH(b->give(), Catch::Contains("not allowed at this point"));
  }
  SECTION("one whose old connection has not ended yet takes its place") {
    Newcomer const again(server, 1);
    CHECK(again.told().empty());
    CHECK_THROWS_WITH(b->told(), Catch::Contains("worker 1 has come again over another") &&
                                     Catch::Contains("; give each worker a number of its own"));
    b = nullptr;
    int const before = again.bell.rings;
    Newcomer const first(server, 0);
    CHECK(again.bell.rings > before);
    CHECK(again.told() == Kinds{Kind::wanted});
    CHECK_THROWS_WITH(a.told(), Catch::Contains("worker 0 has come again"));
    CHECK(first.told().empty());
    again.give();
    CHECK(again.told() == Kinds{Kind::joined});
    CHECK(first.told() == Kinds{Kind::joined});
  }
  SECTION("a worker in the server's process joins meanwhile") {
    auto const model = Newcomer::model_of(1);
    sg::List<std::uint64_t> digests;
    digests.push_back(remote::values_digest(model[0].values()));
    Told here;
    static_cast<void>(server.in_process->join(1, model, digests, Newcomer::rules(), here));
    CHECK_THROWS_WITH(b->told(), Catch::Contains("trains already"));
    a.give();
    CHECK(a.told() == Kinds{Kind::joined});
  }
}

TEST_CASE("collective/ServerConnection: one that waits is told so as long as another gives values",
          "[collective]") {
  Server server(OnFailure::fail_fast);
  auto a = std::make_unique<Newcomer>(server, 0);
  Newcomer const b(server, 1);
  CHECK(a->told() == Kinds{Kind::wanted});
  CHECK(b.told().empty());
  for (int tick = 0; tick < 3; ++tick) {  // nothing of the values has come
    CHECK_FALSE(a->end->tick());
    CHECK(a->told().empty());
    CHECK(b.end->tick());
    CHECK(b.told() == Kinds{Kind::waits});
    CHECK(b.told().empty());
  }
  a = nullptr;
  CHECK(b.told() == Kinds{Kind::wanted});
  CHECK_FALSE(b.end->tick());
}

TEST_CASE("collective/RemoteLink: a model that no server takes is refused before it is sent",
          "[collective]") {
  auto const refusal = [](std::vector<sg::detail::LayerParameters> const& model,
                          sg::detail::WorkerRules const& its = Newcomer::rules()) {
    sg::ByteWriter request;
    try {
      remote::JoinRequest::write(request, 3, model, its);
    } catch (sg::Error const& error) {
      CHECK(error.code() == sg::Errc::bad_configuration);
      return std::string(error.what());
    }
    remote::JoinRequest read;
    read.read({request.data(), request.size()}, 1U << 30U);
    CHECK(read.layers.size() == model.size());
    return std::string();
  };
  auto const named = [](std::size_t parameters, std::size_t letters) {
    std::vector<sg::detail::LayerParameters> model(1);
    sg::List<sg::detail::ParameterDeclaration> declared;
    for (std::size_t i = 0; i < parameters; ++i)
      declared.push_back({.name = std::string(letters, 'w'),
                          .type = sg::ElementType::f64,
                          .size = 0,
                          .initial = {}});
    model[0].adopt(std::move(declared), 0, 0);
    return model;
  };
  std::vector<sg::detail::LayerParameters> many(1U << 16U);
  for (std::size_t l = 0; l < many.size(); ++l) many[l].adopt({}, static_cast<int>(l), 0);
  CHECK(refusal(many).empty());
  many.emplace_back().adopt({}, 1 << 16, 0);
  CHECK(refusal(many) ==
        "worker 3 has a model whose number of layers is 65537, where a server in another process "
        "takes at most 65536; make one layer of several, or use a server in this process");
  CHECK(refusal(named(1, 4096)).empty());
  CHECK_THAT(refusal(named(1, 4097)),
             Catch::Contains("bytes: 4097, where") && Catch::Contains("; give it a shorter one"));
  CHECK_THAT(refusal(named(1100, 4000)), Catch::Contains("at most 4194304; make one parameter"));
}

TEST_CASE("collective/RemoteLink: who may not come back in time is told for whom it waits",
          "[collective]") {
  Server server(OnFailure::fail_fast);
  auto const worker = [&](int number) {
    return std::make_unique<Worker>(server, number, sg::staleness::Adds::in_worker_order,
                                    sg::staleness::Pushes::gradients, 2);
  };
  auto const a = worker(0);
  worker(1)->link.leave();
  a->begin_and_read();
  a->link.push(1, a->bytes.data(), true);  // and goes on in layer 0
  a->wire->carry_all();
  auto const b = worker(1);
  b->link.begin();
  b->deadline_s = 0.01;
  CHECK_THROWS_WITH(b->link.read(0, b->bytes.data()),
                    "the parameter server at the test has not let the worker begin for 0.01 s, "
                    "since it waits for worker 0, which has made 0 pushes; check whether that one "
                    "runs, or raise the deadline");
}

}  // namespace remote_link_test
