// SPDX-License-Identifier: Apache-2.0
#include <stagger/host/asio_parameter_server.hpp>

#include "catch.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <stagger/collective/grouping/layerwise.hpp>
#include <stagger/collective/grouping/optimal.hpp>
#include <stagger/engine/replicas.hpp>
#include <stagger/staleness/asynchronous.hpp>
#include <stagger/staleness/round_robin_synchronous.hpp>
#include <stagger/staleness/stale_synchronous.hpp>

#include "../temporary_folder.hpp"
#include "../train/in_groups.hpp"
#include "../train/overlapped_failures.hpp"
#include "../train/overlapped_oracle.hpp"
#include "../train/replay.hpp"

namespace asio_parameter_server_test {

using namespace workers_oracle;
namespace remote = stagger::collective::detail;
using sg::detail::LayerParameters;

namespace {

/// A server that listens, and its workers.
template <class Optimizer = sg::optimizer::Sgd, class Model = sg::staleness::Synchronous>
struct OnPort {
  sg::collective::ParameterServer server;
  sg::host::AsioParameterServer listening;
  sg::host::RemoteParameterServer remote;
  explicit OnPort(int workers, Optimizer const& optimizer = {}, bool log = false,
                  Model const& model = {},
                  sg::collective::OnFailure on_failure = sg::collective::OnFailure::fail_fast)
      : server({.workers = workers, .shards = 2, .log = log, .on_failure = on_failure}),
        listening(server, {.threads = workers}, optimizer, model),
        remote({.port = listening.port(), .deadline_s = 5}) {}
  [[nodiscard]] auto worker(int number) const { return remote.worker(number); }
  [[nodiscard]] auto const& in_process() const { return server.in_process(); }
};

LayerParameters& declare(LayerParameters& layer, std::vector<float> const& first, int number) {
  sg::List<sg::detail::ParameterDeclaration> declared;
  sg::detail::ParameterDeclaration d;
  d.name = "weight";
  d.size = first.size();
  d.rows = first.size() == initial(0).size() ? matrix_rows : 0;
  auto const bytes = std::as_bytes(std::span(first));
  d.initial.assign(bytes.data(), bytes.size());
  declared.push_back(std::move(d));
  layer.adopt(std::move(declared), number, 0);
  return layer;
}

/// Of a worker whose model adds waves in the order of workers, with a distance of 0.
template <class Optimizer>
sg::detail::WorkerRules rules(Optimizer const& optimizer, int push_minibatches) {
  sg::detail::WorkerRules rules;
  rules.push_minibatches = push_minibatches;
  rules.ahead = 2;
  rules.optimizer = sg::detail::optimizer_call<true>(optimizer);
  return rules;
}

std::string header(remote::Message const& message) {
  return {reinterpret_cast<char const*>(&message), sizeof(message)};
}
/// As docs/workers_protocol.md has it, byte by byte.
std::string frame(remote::Message message, std::string const& payload = {}) {
  message.bytes = payload.size();
  std::string const head = header(message);
  std::string const padded = payload + std::string((128 - payload.size() % 128) % 128, '\0');
  auto const word = [](std::string const& of, std::size_t i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, of.data() + 8 * i, 8);
    return bits;
  };
  std::uint64_t sums[16] = {};
  for (std::size_t i = 0; i < padded.size() / 8; ++i) {
    std::uint64_t& h = sums[i % 16];
    h = (h ^ word(padded, i)) * 8193;
    h ^= h >> 29U;
  }
  std::uint64_t all = 0x9e3779b97f4a7c15U;
  auto const add = [&](std::uint64_t bits) {
    all = (all ^ bits) * 0xff51afd7ed558ccdU;
    all ^= all >> 32U;
  };
  for (std::size_t i = 0; i < head.size() / 8; ++i) add(word(head, i));
  for (std::uint64_t const sum : sums) add(sum);
  return (head + payload).append(reinterpret_cast<char const*>(&all), 8);
}

/// What a worker of `plain_layers` says when it joins.
template <class Optimizer>
std::string request(int worker, Optimizer const& optimizer, int push_minibatches) {
  std::vector<LayerParameters> model(layers);
  for (int l = 0; l < layers; ++l) declare(model[static_cast<std::size_t>(l)], initial(l), l);
  sg::ByteWriter out;
  remote::JoinRequest::write(out, worker, {model.data(), model.size()},
                             rules(optimizer, push_minibatches));
  return {reinterpret_cast<char const*>(out.data()), out.size()};
}

/// The other side of a connection, which keeps no rule by itself.
class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(context_) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), port});
  }
  static std::string hello() {
    sg::detail::framed::Hello const hello;
    return {reinterpret_cast<char const*>(&hello), sizeof(hello)};
  }
  void send(std::string const& bytes) {
    boost::system::error_code ignored;  // it may have been refused already
    boost::asio::write(socket_, boost::asio::buffer(bytes), ignored);
  }
  void close() { socket_.close(); }
  /// The next frame, whose payload lies in `payload`; 0 at the end.
  remote::MessageKind kind() {
    remote::Message message;
    std::uint64_t sum = 0;
    boost::system::error_code error;
    boost::asio::read(socket_, boost::asio::buffer(&message, sizeof(message)), error);
    if (error) return {};
    payload.resize(message.bytes);
    boost::asio::read(socket_, boost::asio::buffer(payload), error);
    boost::asio::read(socket_, boost::asio::buffer(&sum, sizeof(sum)), error);
    REQUIRE(frame(message, payload).substr(32 + payload.size()) ==
            std::string(reinterpret_cast<char const*>(&sum), 8));
    return message.kind;
  }
  /// The sentence with which the connection ends; empty: without one.
  std::string refusal() {
    std::string last;
    for (auto k = kind(); k != remote::MessageKind{}; k = kind())
      last = k == remote::MessageKind::refused ? payload : "";
    return last;
  }
  std::string payload;

 private:
  boost::asio::io_context context_;
  boost::asio::ip::tcp::socket socket_;
};

/// Whether worker `n` has pushed every layer in its first stream.
template <class Server> bool has_pushed(Server const& server, int n) {
  for (std::size_t l = 0; l < layers; ++l)
    if (server.server.in_process()->pushes(n, l) == 0) return false;
  return true;
}

}  // namespace

TEST_CASE("asio/AsioParameterServer: workers have the bits of a sequential loop", "[asio]") {
  sweep_waves(Sweep(31), [](Waves const& waves, int rotation, int threads, int minibatches,
                            auto const& optimizer) {
    OnPort const server(waves.workers);
    compare(waves, server, cuts_from(rotation), threads, minibatches, optimizer);
  });
}

TEST_CASE("asio/AsioParameterServer: steps that push changes have the bits of a sequential loop",
          "[asio]") {
  sweep_stale(Sweep(2), [](Stale const& stale, int rotation, int threads, auto const& optimizer) {
    OnPort const server(stale.workers);
    compare_changes_on_threads(stale, server, rotation, threads, optimizer);
  });
}

TEST_CASE("asio/AsioParameterServer: steps have the bits of one server loop", "[asio]") {
  sweep_steps([](int workers, int rotation, int threads) {
    OnPort const server(workers, adam);
    compare_steps(workers, server, adam, rotation, threads);
  });
}

TEST_CASE("asio/AsioParameterServer: gradient groups have the bits of a sequential loop",
          "[asio]") {
  sweep_stale(Sweep(12), [](Stale const& stale, int rotation, int threads, auto const& optimizer) {
    OnPort const server(stale.workers);
    compare_changes_on_threads(stale, InGroups{server, sg::collective::grouping::Layerwise{}},
                               rotation, threads, optimizer);
  });
  Sweep sweep(4);
  sweep_steps([&](int workers, int rotation, int threads) {
    if (!sweep.takes()) return;
    OnPort const server(workers, adam);
    compare_steps(workers, InGroups{server, sg::collective::grouping::Optimal{}}, adam, rotation,
                  threads);
  });
}

TEST_CASE("asio/AsioParameterServer: carried out again, its log gives the bits of drifting steps",
          "[asio]") {
  auto const replay = [&](auto const& model, int workers, int rotation, int threads) {
    CAPTURE(rotation, threads);
    OnPort<sg::optimizer::AdamW> const server(workers, adam, true);
    replay_drifting(
        model.pushes, workers, all_of(workers), [&] { return logs_of(server.server); },
        [&](int n) { return stepping(model, server, n, adam, cuts_of(n, rotation), threads); });
  };
  using sg::staleness::Pushes;
  Sweep sweep(3);
  sweep_steps([&](int workers, int rotation, int threads) {
    if (!sweep.takes()) return;
    replay(sg::staleness::RoundRobinSynchronous{}, workers, rotation, threads);
    for (auto const pushes : {Pushes::gradients, Pushes::changes}) {
      replay(sg::staleness::Asynchronous{pushes}, workers, rotation, threads);
      for (int const bound : {0, 1, 3})
        replay(sg::staleness::StaleSynchronous{bound, pushes}, workers, rotation, threads);
    }
  });
}

TEST_CASE("asio/AsioParameterServer: carried out again, its log gives the bits of waves on arrival",
          "[asio]") {
  sweep_waves(Sweep(17), [](Waves const& waves, int rotation, int threads, int minibatches,
                            auto const& optimizer) {
    OnPort<sg::optimizer::Sgd> const server(waves.workers, {}, true);
    replay_waves(
        waves, all_of(waves.workers), minibatches, optimizer,
        [&] { return logs_of(server.server); }, all_here,
        [&](int n, auto& seen) {
          return make_noting(waves, server.worker(n), cuts_of(n, rotation),
                             sg::host::Threads{threads}, optimizer, seen);
        });
  });
}

TEST_CASE("asio/AsioParameterServer: layers larger than every buffer arrive whole", "[asio]") {
  sg::collective::ParameterServer const server({.workers = 1});
  sg::host::AsioParameterServer const listening(server);
  struct : sg::detail::ParameterListener {
    std::atomic<int> count{0};
    void arrived(std::size_t, std::uint32_t) noexcept override { ++count; }
    void lost(std::exception_ptr) noexcept override {}
  } told;
  std::size_t const sizes[] = {1, 16, 4096, 4097, 70000, 1000003, 0};
  std::vector<LayerParameters> model(std::size(sizes));
  for (std::size_t l = 0; l < model.size(); ++l) {
    std::vector<float> first(sizes[l]);
    for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<float>(i % 1000);
    declare(model[l], first, static_cast<int>(l));
  }
  auto const link = sg::host::RemoteParameterServer({.port = listening.port()}).worker(0).link();
  link->join({model.data(), model.size()}, rules(sgd, 1), told);
  link->begin();
  for (std::size_t l = 0; l < model.size(); ++l) {
    std::vector<std::byte> got(model[l].bytes_of_values());
    link->read(l, got.data());
    REQUIRE(std::equal(got.begin(), got.end(), model[l].values().begin()));
    link->push(l, got.data(), false);
    link->ask(l, 1);
  }
  while (told.count.load() < static_cast<int>(model.size())) std::this_thread::yield();
  for (std::size_t l = 0; l < model.size(); ++l) {
    std::vector<std::byte> got(model[l].bytes_of_values());
    link->take(l, 1, got.data());
    bool doubled = true;
    for (std::size_t i = 0; i < sizes[l]; ++i) {
      float value = 0;
      std::memcpy(&value, got.data() + 4 * i, 4);
      doubled = doubled && value == 2 * static_cast<float>(i % 1000);
    }
    REQUIRE(doubled);
  }
}

TEST_CASE("asio/FrameChecksum: that of docs/workers_protocol.md, in whatever parts bytes come",
          "[asio]") {
  std::mt19937_64 random(5);
  for (std::size_t const size : {0U, 1U, 8U, 127U, 128U, 129U, 4096U, 70001U}) {
    CAPTURE(size);
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    remote::Message const message{
        .kind = remote::MessageKind::push, .number = random(), .bytes = size};
    sg::detail::framed::FrameChecksum whole, parts;
    whole.add(std::as_bytes(std::span(bytes)));
    std::string copied(size, 'x');
    auto const to = std::as_writable_bytes(std::span(copied));
    for (std::size_t at = 0, count = 0; at < size; at += count) {
      count = std::min<std::size_t>(size - at, 128 * (1 + random() % 20));
      parts.copy(to.data() + at, std::as_bytes(std::span(bytes)).subspan(at, count));
    }
    CHECK(copied == bytes);
    for (auto const& sum : {whole, parts}) {
      std::uint64_t const value = sum.value(message);
      CHECK(frame(message, bytes).substr(32 + size) ==
            std::string(reinterpret_cast<char const*>(&value), 8));
    }
  }
}

TEST_CASE("asio/AsioParameterServer: says in one sentence what is wrong with a frame", "[asio]") {
  OnPort const server(2);
  auto const said = [&](std::string const& bytes) {
    Client client(server.listening.port());
    client.send(bytes);
    return client.refusal();
  };
  auto const hello = Client::hello();
  using enum remote::MessageKind;
  using Catch::Matchers::Contains;
  std::string const asked = request(1, sgd, 4);
  SECTION("before a worker has joined") {
    REQUIRE_THAT(said(std::string(72, 'x')), Contains("the token is not that of the server"));
    auto other = hello;
    other[70] = 9;
    REQUIRE_THAT(said(other), Contains("the server speaks version 5"));
    REQUIRE_THAT(said(hello + frame({.kind = begin})), Contains("not allowed at this point"));
    REQUIRE_THAT(said(hello + frame({.kind = static_cast<remote::MessageKind>(999)})),
                 Contains("kind 999"));
    REQUIRE_THAT(said(hello + header({.kind = remote::MessageKind::join, .bytes = 1ULL << 60U})),
                 Contains("is too long"));
    REQUIRE_THAT(said(hello + header({.kind = push, .bytes = 1ULL << 60U})),
                 Contains("not allowed at this point"));
    REQUIRE_THAT(said(hello + frame({.kind = remote::MessageKind::join}, std::string(6, '\0'))),
                 Contains("ends early"));
    auto mangled = hello + frame({.kind = remote::MessageKind::join}, asked);
    mangled[hello.size() + 40] ^= 1;
    REQUIRE_THAT(said(mangled), Contains("does not agree with its checksum"));
    auto large = asked;
    std::uint64_t const elements = 1ULL << 50U;
    std::memcpy(large.data() + 72 + sg::detail::policy_words(sgd).size(), &elements, 8);
    REQUIRE_THAT(said(hello + frame({.kind = remote::MessageKind::join}, large)),
                 Contains("raise model_bytes"));
    auto nameless = asked;
    std::uint32_t const length = 65;
    std::memcpy(nameless.data(), &length, 4);
    REQUIRE_THAT(said(hello + frame({.kind = remote::MessageKind::join}, nameless)),
                 Contains("names the number 65 where at most 64 can be"));
    REQUIRE_THAT(said(hello + frame({.kind = remote::MessageKind::join}, request(7, sgd, 4))),
                 Contains("there is no worker 7"));
  }
  SECTION("of one that has joined") {
    Waves const waves{2, 4, 0};
    auto a = make(waves, server, 0, {2}, 1, sgd);
    auto const joined = hello + frame({.kind = remote::MessageKind::join}, asked);
    REQUIRE_THAT(said(joined + frame({.kind = push, .layer = 99, .number = 1})),
                 Contains("names no layer"));
    REQUIRE_THAT(said(joined + header({.kind = push, .number = 1, .bytes = 1ULL << 40U})),
                 Contains("layer 0 and 1099511627776 bytes of worker 1 should have 64 bytes"));
    REQUIRE_THAT(said(joined + frame({.kind = begin, .stream = 1}) +
                      frame({.kind = push, .stream = 1, .number = 5}, std::string(64, '\0'))),
                 Contains("layer 0 and 64 bytes of worker 1 is push 5, where push 1 comes next"));
    REQUIRE_THAT(said(joined + frame({.kind = newest})), Contains("not for a server"));
    auto b = make(waves, server, 1, {2}, 1, sgd);  // its place is free again each time
    REQUIRE_THAT(said(joined), Contains("worker 1 trains already"));
    auto const batch = data(8);
    sg::run_together(a.stream(batch), b.stream(batch));
    REQUIRE(weights(a) == weights(b));
  }
}

TEST_CASE("asio/AsioParameterServer: a worker that is cut off in a push has failed", "[asio]") {
  OnPort const server(2);
  auto a = make(Waves{2, 4, 0}, server, 0, {2}, 1, sgd);
  auto const batch = data(8);
  {
    Client client(server.listening.port());
    client.send(Client::hello() + frame({.kind = remote::MessageKind::join}, request(1, sgd, 4)) +
                frame({.kind = remote::MessageKind::begin, .stream = 1}));
    auto const push =
        frame({.kind = remote::MessageKind::push, .stream = 1, .number = 1}, std::string(64, '\0'));
    client.send(push.substr(0, 50));
    REQUIRE(client.kind() == remote::MessageKind::joined);
    std::thread cut([&] {
      while (!has_pushed(server, 0)) std::this_thread::yield();
      client.close();
    });
    REQUIRE_THROWS_WITH(run(a.stream(batch)), Catch::Matchers::Contains("worker 1 has failed"));
    cut.join();
  }
  std::vector<OracleWorker<sg::optimizer::Sgd>> alone(1);  // what it had pushed stays
  alone[0].batch = data(4);
  auto expected = first_weights();
  sequential(Waves{1, 4, 0}, sgd, alone, expected);
  REQUIRE(weights(a) == expected);
  auto b = make(Waves{2, 4, 0}, server, 1, {2}, 1, sgd);
  sg::run_together(a.stream(batch), b.stream(batch));
  REQUIRE(weights(a) == weights(b));
}

TEST_CASE("asio/AsioParameterServer: a push sent twice is acknowledged and added once", "[asio]") {
  sg::collective::ParameterServer const server({.workers = 1});
  sg::host::AsioParameterServer const listening(server);
  Client client(listening.port());
  std::string one(64, '\0');
  float const value = 3;
  std::memcpy(one.data(), &value, 4);
  using enum remote::MessageKind;
  client.send(Client::hello() + frame({.kind = join}, request(0, sgd, 4)));
  REQUIRE(client.kind() == wanted);
  for (std::uint32_t l = 0; l < layers; ++l)
    client.send(frame({.kind = values, .layer = l}, std::string(64, '\0')));
  REQUIRE(client.kind() == joined);
  client.send(frame({.kind = begin, .stream = 1}));
  for (int i = 0; i < 3; ++i) {
    client.send(frame({.kind = push, .stream = 1, .number = 1}, one));
    REQUIRE(client.kind() == pushed);
  }
  client.send(frame({.kind = read, .stream = 1}));
  REQUIRE(client.kind() == newest);
  float got = 0;
  std::memcpy(&got, client.payload.data(), 4);
  REQUIRE(got == 3);
}

TEST_CASE("asio/AsioParameterServer: a worker that freezes amid a push has failed", "[asio]") {
  sg::collective::ParameterServer const server({.workers = 2});
  sg::host::AsioParameterServer const listening(server, {.deadline_s = 0.3});
  sg::host::RemoteParameterServer const remote({.port = listening.port(), .deadline_s = 20});
  auto a = make(Waves{2, 4, 0}, remote, 0, {2}, 1, sgd);
  Client client(listening.port());
  client.send(
      Client::hello() + frame({.kind = remote::MessageKind::join}, request(1, sgd, 4)) +
      frame({.kind = remote::MessageKind::begin, .stream = 1}) +
      frame({.kind = remote::MessageKind::push, .stream = 1, .number = 1}, std::string(64, '\0'))
          .substr(0, 50));
  REQUIRE(client.kind() == remote::MessageKind::joined);
  auto const batch = data(8);
  REQUIRE_THROWS_WITH(run(a.stream(batch)), Catch::Matchers::Contains("worker 1 has failed"));
  client.refusal();  // reads until the server has ended the connection
}

TEST_CASE(
    "asio/AsioParameterServer: what a worker pushes whose stream others have ended is dropped",
    "[asio]") {
  sg::collective::ParameterServer const server({.workers = 2});
  sg::host::AsioParameterServer const listening(server);
  using enum remote::MessageKind;
  Client first(listening.port());
  first.send(Client::hello() + frame({.kind = join}, request(0, sgd, 4)));
  REQUIRE(first.kind() == wanted);
  auto const of_layer = [](std::uint32_t l) {
    Numbers values = initial(static_cast<int>(l));
    values.resize(16);  // to a multiple of 64 bytes
    return std::string(reinterpret_cast<char const*>(values.data()), 64);
  };
  for (std::uint32_t l = 0; l < layers; ++l)
    first.send(frame({.kind = values, .layer = l}, of_layer(l)));
  REQUIRE(first.kind() == joined);
  Client second(listening.port());
  second.send(Client::hello() + frame({.kind = join}, request(1, sgd, 4)) +
              frame({.kind = begin, .stream = 1}) + frame({.kind = read, .stream = 1}));
  REQUIRE(second.kind() == joined);
  REQUIRE(second.kind() == newest);
  first.send(frame({.kind = begin, .stream = 1}) + frame({.kind = fail, .stream = 1}));
  REQUIRE(second.kind() == lost);
  REQUIRE_THAT(second.payload, Catch::Matchers::Contains("worker 0 has failed"));
  std::string one(64, '\0');
  float const value = 3;
  std::memcpy(one.data(), &value, 4);
  second.send(frame({.kind = push, .stream = 1, .number = 1}, one) +
              frame({.kind = begin, .stream = 2}) + frame({.kind = read, .stream = 2}));
  REQUIRE(second.kind() == newest);  // and nothing is acknowledged before it
  REQUIRE(second.payload == of_layer(0));
}

TEST_CASE("asio/AsioParameterServer: no stream goes on that has ended, or that was not kept",
          "[asio]") {
  using enum remote::MessageKind;
  auto const joins = Client::hello() + frame({.kind = join}, request(0, sgd, 4));
  auto const begins = frame({.kind = begin, .stream = 1}) + frame({.kind = read, .stream = 1});
  auto const resumes = frame({.kind = resume, .stream = 1});
  auto const enter = [&](Client& client) {  // as the first worker
    client.send(joins);
    REQUIRE(client.kind() == wanted);
    for (std::uint32_t l = 0; l < layers; ++l)
      client.send(frame({.kind = values, .layer = l}, std::string(64, '\0')));
    REQUIRE(client.kind() == joined);
  };
  SECTION("that was not kept") {
    sg::collective::ParameterServer const server({.workers = 1});
    sg::host::AsioParameterServer const listening(server);
    Client client(listening.port());
    enter(client);
    client.send(resumes);
    REQUIRE_THAT(client.refusal(), Catch::Matchers::Contains("this server has not kept"));
  }
  SECTION("that has ended") {
    std::string folder =
        (std::filesystem::temp_directory_path() / "stagger-resume-XXXXXX").string();
    REQUIRE(::mkdtemp(folder.data()) != nullptr);
    {
      sg::collective::ParameterServer const server({.workers = 1, .durable = folder});
      sg::host::AsioParameterServer const listening(server);
      {
        Client client(listening.port());
        enter(client);
        client.send(begins);
        REQUIRE(client.kind() == newest);
      }
      // It is refused as long as the server has not seen that the connection has ended.
      auto again = std::make_unique<Client>(listening.port());
      again->send(joins);
      while (again->kind() != joined) {
        again = std::make_unique<Client>(listening.port());
        again->send(joins);
      }
      again->send(resumes);
      REQUIRE(again->kind() == lost);
      REQUIRE_THAT(again->payload,
                   Catch::Matchers::Contains("has ended while the worker had no connection"));
    }
    std::filesystem::remove_all(folder);
  }
}

TEST_CASE("asio/AsioParameterServer: late layers have the bits of a sequential loop", "[asio]") {
  using namespace overlapped_oracle;
  sweep_steps([](int workers, int rotation, int threads) {
    CAPTURE(rotation, threads);
    OnPort const server(workers, adam, false, local_split);
    int const split = compare_late(
        local_split_rules(), adam, workers, all_of(workers),
        [&](int n) {
          return stepping(local_split, server, n, adam, cuts_of(n, rotation), threads);
        },
        7);
    CHECK(split == 7);
  });
}

TEST_CASE("asio/AsioParameterServer: late layers have the bits of workers in one process",
          "[asio]") {
  OnPort const server(2, adam, false, split_late);
  compare_late_steps(server, server);
}

TEST_CASE(
    "asio/AsioParameterServer: a worker with late layers is killed at any point and comes back, "
    "and the bits are those of a sequential loop",
    "[asio]") {
  using namespace overlapped_oracle;
  auto const server = [] {
    return std::make_unique<OnPort<sg::optimizer::AdamW, decltype(local_split)>>(
        3, adam, false, local_split, sg::collective::OnFailure::go_on);
  };
  int waited = 0;
  int all = 0;
  for (int const worker : {0, 2}) {
    Failure const failure{.worker = worker, .cuts = {2}, .threads = 2};
    all += compare_failures(server, local_split, local_split_rules(), adam, failure, 20, waited);
  }
  CHECK(all > 24);
  CHECK(waited > all / 10);
}

TEST_CASE("asio/AsioParameterServer: a push that is not finite is refused", "[asio]") {
  OnPort const server(2, adam);
  refuses_infinities(server, server);
}

TEST_CASE("asio/AsioParameterServer: so is a large one, wherever it is not finite", "[asio]") {
  constexpr std::size_t size = 50000;  // which arrives in several parts
  for (std::size_t const at : {std::size_t{0}, size / 2, size - 1}) {
    CAPTURE(at);
    sg::collective::ParameterServer const server({.workers = 1});
    sg::host::AsioParameterServer const listening(server);
    struct : sg::detail::ParameterListener {
      void arrived(std::size_t, std::uint32_t) noexcept override {}
      void lost(std::exception_ptr) noexcept override {}
    } told;
    std::vector<LayerParameters> model(1);
    std::vector<float> values(size);
    declare(model[0], values, 0);
    auto const link = sg::host::RemoteParameterServer({.port = listening.port()}).worker(0).link();
    link->join({model.data(), 1}, rules(sgd, 1), told);
    link->begin();
    link->read(0, reinterpret_cast<std::byte*>(values.data()));
    values[at] = std::numeric_limits<float>::infinity();
    auto const* const pushed = reinterpret_cast<std::byte const*>(values.data());
    auto const push_twice = [&] {  // the second one waits for what the server says of the first
      link->push(0, pushed, false);
      link->push(0, pushed, false);
    };
    REQUIRE_THROWS_WITH(push_twice(), Catch::Matchers::Contains(
                                          "push 1 of worker 0 has a number in layer 0 that is "
                                          "not finite; that layer's push was not added"));
  }
}

TEST_CASE("asio/AsioParameterServer: another optimizer of equal numbers is refused", "[asio]") {
  OnPort const server(1, sgd);
  REQUIRE_THROWS_WITH(stepping(sg::staleness::Synchronous{}, server, 0, SlowSgd{sgd}),
                      Catch::Matchers::Contains("disagree on the optimizer: worker 0 has") &&
                          Catch::Matchers::Contains("SlowSgd(0.02, 0.9, 0.01)'") &&
                          Catch::Matchers::Contains("'stagger::optimizer::Sgd(0.02, 0.9, 0.01)'"));
}

TEST_CASE("asio/AsioParameterServer: a worker of another run is refused", "[asio]") {
  std::string const longest(64, 'r');
  sg::collective::ParameterServer const server({.workers = 1, .run = longest});
  sg::host::AsioParameterServer const listening(server);
  auto const joins = [&](std::string const& run) {
    sg::host::RemoteParameterServer const remote(
        {.port = listening.port(), .deadline_s = 5, .run = run});
    static_cast<void>(make(Waves{1, 4, 0}, remote, 0, {2}, 1, sgd));
  };
  std::string const wrong = ", the parameter server that it joins of run '" + longest +
                            "'; connect with the server of its run, or give both the same name";
  REQUIRE_THROWS_WITH(joins("yesterday's"), "worker 0 is of run 'yesterday's'" + wrong);
  REQUIRE_THROWS_WITH(joins(""), "worker 0 is of a run without a name" + wrong);
  joins(longest);  // whose place is free, and whose values are the first
  sg::collective::ParameterServer const nameless({.workers = 1});
  sg::host::AsioParameterServer const there(nameless);
  sg::host::RemoteParameterServer const remote({.port = there.port(), .run = "today's"});
  REQUIRE_THROWS_WITH(make(Waves{1, 4, 0}, remote, 0, {2}, 1, sgd),
                      "worker 0 is of run 'today's', the parameter server that it joins of a run "
                      "without a name; connect with the server of its run, or give both the same "
                      "name");
}

TEST_CASE("asio/RemoteParameterServer: the name of a run has at most 64 bytes", "[asio]") {
  REQUIRE_NOTHROW(sg::host::RemoteParameterServer({.run = std::string(64, 'r')}));
  std::string const name(65, 'r');
  std::string const words = "the name of a run, '" + name + "', has 65 bytes; use at most 64";
  REQUIRE_THROWS_WITH(sg::host::RemoteParameterServer({.run = name}), words);
  REQUIRE_THROWS_WITH(sg::collective::ParameterServer({.workers = 1, .run = name}), words);
}

TEST_CASE("asio/AsioParameterServer: connections that say nothing are ended in time", "[asio]") {
  sg::collective::ParameterServer const server({.workers = 1});
  sg::host::AsioParameterServer const listening(server, {.handshake_s = 0.3});
  sg::host::RemoteParameterServer const remote_server({.port = listening.port()});
  std::vector<std::unique_ptr<Client>> silent;
  auto const all = Client::hello() + frame({.kind = remote::MessageKind::join}, request(0, sgd, 2));
  for (std::size_t i = 0; i < 20; ++i) {  // some say something, and not all of it
    silent.push_back(std::make_unique<Client>(listening.port()));
    silent.back()->send(all.substr(0, i * all.size() / 20));
  }
  compare(Waves{1, 2, 0}, remote_server, {{2}}, 1, 5, sgd);
  for (auto& each : silent) REQUIRE(each->refusal() == "");
}

TEST_CASE("asio/AsioParameterServer: a crowd does not push out who has said hello", "[asio]") {
  sg::collective::ParameterServer const server({.workers = 1});
  sg::host::AsioParameterServer const listening(server, {.handshake_s = 600, .threads = 1});
  Client worker(listening.port());
  worker.send(Client::hello());
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<Client>(listening.port()));
  REQUIRE(silent[0]->refusal() == "");  // the oldest that is silent, though not the oldest
  worker.send(frame({.kind = remote::MessageKind::join}, request(0, sgd, 4)));
  REQUIRE(worker.kind() == remote::MessageKind::wanted);
}

TEST_CASE("asio/AsioParameterServer: a crowd on all of its threads keeps no worker out", "[asio]") {
  sg::collective::ParameterServer const server({.workers = 2});
  sg::host::AsioParameterServer const listening(server, {.handshake_s = 600, .threads = 3});
  auto const join = [&](Client& worker, int number) {
    worker.send(Client::hello() +
                frame({.kind = remote::MessageKind::join}, request(number, sgd, 4)));
    return worker.kind();
  };
  Client before(listening.port());
  REQUIRE(join(before, 0) == remote::MessageKind::wanted);
  std::vector<std::unique_ptr<Client>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<Client>(listening.port()));
  Client after(listening.port());
  REQUIRE(join(after, 1) == remote::MessageKind::waits);  // for the values, of which none come
  before.send(
      frame({.kind = remote::MessageKind::who}));  // it may not ask that before it has joined
  REQUIRE(before.kind() == remote::MessageKind::refused);
  auto next = after.kind();
  while (next == remote::MessageKind::waits) next = after.kind();
  REQUIRE(next == remote::MessageKind::wanted);
}

TEST_CASE("asio/AsioParameterServer: connections of another process keep no worker out", "[asio]") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  pid_t const crowd = ::fork();
  REQUIRE(crowd >= 0);
  if (crowd == 0) {  // opens as many as it may, and keeps them until the test is over
    ::close(ends[1]);
    std::uint16_t port = 0;
    char over = 0;
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 10'000);
    ::setrlimit(RLIMIT_NOFILE, &files);
    if (::read(ends[0], &port, sizeof(port)) != sizeof(port)) ::_exit(1);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(port);
    for (rlim_t i = 0; i < files.rlim_cur; ++i) {
      int const socket = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      ::connect(socket, reinterpret_cast<sockaddr const*>(&to), sizeof(to));
    }
    bool const told = ::write(ends[0], &over, 1) == 1;
    ::_exit(told && ::read(ends[0], &over, 1) == 0 ? 0 : 1);
  }
  ::close(ends[0]);
  {
    sg::collective::ParameterServer const server({.workers = 1});
    sg::host::AsioParameterServer const listening(server);
    std::uint16_t const port = listening.port();
    char opened = 0;
    REQUIRE(::write(ends[1], &port, sizeof(port)) == sizeof(port));
    REQUIRE(::read(ends[1], &opened, 1) == 1);
    compare(Waves{1, 2, 0}, sg::host::RemoteParameterServer({.port = port}), {{2}}, 1, 5, sgd);
  }
  ::close(ends[1]);
  int status = 1;
  REQUIRE(::waitpid(crowd, &status, 0) == crowd);
  REQUIRE(status == 0);
}

namespace {

/// A server's end of one connection, whose thread and clock are the test itself.
struct ByHand {
  static constexpr double deadline_s = 0.5;  // 5 ticks
  boost::asio::io_context context{1};
  boost::asio::ip::tcp::acceptor acceptor{context, {boost::asio::ip::address_v4::loopback(), 0}};
  sg::detail::framed::Service service{
      std::make_shared<remote::ServerInProcess>(sg::collective::ServerOptions{.workers = 1}),
      remote::remote_rules(sgd, sg::staleness::Synchronous{},
                           &sg::detail::optimizer_call<false, sg::optimizer::Sgd>,
                           static_cast<sg::detail::LateCalls const*>(nullptr)),
      {},
      deadline_s,
      2};
  Client client{acceptor.local_endpoint().port()};
  std::optional<sg::detail::framed::Accepted> accepted;

  ByHand() {
    service.rules.model_bytes = 1U << 20U;
    sg::detail::framed::AsioConnection::Socket socket(context);
    acceptor.accept(socket);
    accepted.emplace(service, std::move(socket));
  }
  ~ByHand() { accepted->stream->end(nullptr); }
  /// Sends a few bytes, and lets the server read them.
  void arrive(std::string const& bytes) {
    std::uint64_t const before = accepted->stream->moved();
    client.send(bytes);
    while (accepted->stream->moved() == before) REQUIRE(context.run_one() == 1);
  }
  /// Sends everything that comes before the first values.
  void identify() {
    client.send(Client::hello() + frame({.kind = remote::MessageKind::join}, request(0, sgd, 4)));
    while (!accepted->worker.identified()) REQUIRE(context.run_one() == 1);
    REQUIRE(client.kind() == remote::MessageKind::wanted);
  }
  void tick(int count) {
    for (int i = 0; i < count; ++i) accepted->tick();
  }
};

}  // namespace

TEST_CASE("asio/AsioParameterServer: a worker may join for as long as its first values come",
          "[asio]") {
  ByHand server;
  server.identify();
  int ticks = 0;
  for (std::uint32_t l = 0; l < layers; ++l) {
    REQUIRE_FALSE(server.accepted->worker.joined());
    auto const values =
        frame({.kind = remote::MessageKind::values, .layer = l}, std::string(64, '\0'));
    for (std::size_t at = 0; at < values.size(); at += 26, ticks += 5) {
      server.arrive(values.substr(at, 26));
      server.tick(5);
    }
  }
  REQUIRE(ticks == 16 * 5);  // of which 5 end a connection that does not move
  REQUIRE(server.accepted->worker.joined());
  REQUIRE(server.client.kind() == remote::MessageKind::joined);
}

TEST_CASE("asio/AsioParameterServer: a worker that sends no first values is told so", "[asio]") {
  SECTION("between two layers, or within one") {
    for (std::size_t const bytes : {104U, 50U}) {
      ByHand server;
      server.identify();
      server.arrive(
          frame({.kind = remote::MessageKind::values}, std::string(64, '\0')).substr(0, bytes));
      server.tick(5);
      REQUIRE_FALSE(server.accepted->stream->ended());
      server.tick(1);
      REQUIRE(server.client.refusal() == server.service.late);
      server.tick(7);  // as long again for a worker that does not leave
      REQUIRE(server.accepted->stream->ended());
    }
  }
  SECTION("by a server that listens") {
    sg::collective::ParameterServer const server({.workers = 1});
    sg::host::AsioParameterServer const listening(server, {.deadline_s = 0.3});
    Client client(listening.port());
    client.send(Client::hello() + frame({.kind = remote::MessageKind::join}, request(0, sgd, 4)));
    REQUIRE(client.kind() == remote::MessageKind::wanted);
    REQUIRE(client.refusal() == sg::detail::framed::too_late(0.3));
  }
}

TEST_CASE("asio/RemoteParameterServer: a worker's connection counts what it transfers", "[asio]") {
  struct Silent final : remote::MessageEnd {
    std::span<std::byte> payload_buffer(remote::Message const&) override { return {}; }
    void received(remote::Message const&) override {}
    bool next(remote::Message&, std::span<std::byte const>&) override { return false; }
    void gone(std::exception_ptr) noexcept override {}
  } end;
  boost::asio::io_context context(1);
  boost::asio::ip::tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  sg::detail::framed::WorkerConnector connector({.port = acceptor.local_endpoint().port()});
  auto const worker = connector.connect(end);
  std::string hello(sizeof(sg::detail::framed::Hello), '\0');
  boost::asio::ip::tcp::socket server(context);
  acceptor.accept(server);
  boost::asio::read(server, boost::asio::buffer(hello));
  REQUIRE(worker->moved() != 0);
  server.close();
  worker->close();
}

TEST_CASE("asio/AsioConnection: the system is told how long a vanished machine may be silent",
          "[asio]") {
  namespace framed = sg::detail::framed;
  boost::asio::io_context context(1);
  boost::asio::ip::tcp::acceptor acceptor(context, {boost::asio::ip::address_v4::loopback(), 0});
  framed::AsioConnection::Socket socket(context);
  socket.connect(acceptor.local_endpoint());
  int const file = socket.native_handle();
  auto const option = [&](int level, int name) {
    int value = 0;
    socklen_t size = sizeof(value);
    REQUIRE(::getsockopt(file, level, name, &value, &size) == 0);
    return value;
  };
  framed::AsioConnection const connection(std::move(socket), "a worker", nullptr, 40);
  REQUIRE(option(SOL_SOCKET, SO_KEEPALIVE) != 0);
#ifdef TCP_USER_TIMEOUT
  REQUIRE(option(IPPROTO_TCP, TCP_USER_TIMEOUT) == 40'000);
#endif
#ifdef TCP_KEEPIDLE
  REQUIRE(option(IPPROTO_TCP, TCP_KEEPIDLE) +
              option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT) ==
          40);
#endif
}

TEST_CASE("asio/AsioParameterServer: a server that goes ends the streams of its workers",
          "[asio]") {
  auto server = std::make_unique<OnPort<>>(2);
  auto a = make(Waves{2, 4, 0}, *server, 0, {2}, 1, sgd);
  auto b = make(Waves{2, 4, 0}, *server, 1, {2}, 1, sgd);
  auto const batch = data(8);
  std::thread end([&] {
    while (!has_pushed(*server, 0)) std::this_thread::yield();
    server = nullptr;
  });
  REQUIRE_THROWS_WITH(run(a.stream(batch)),
                      Catch::Matchers::Contains("the connection with the parameter server at "));
  end.join();
}

TEST_CASE("asio/AsioParameterServer: says what is wrong with its address, threads or token",
          "[asio]") {
  sg::collective::ParameterServer const server({.workers = 1});
  REQUIRE_THROWS_WITH(sg::host::AsioParameterServer(server, {.address = "0.0.0.0"}),
                      Catch::Matchers::Contains("give it a token"));
  REQUIRE_THROWS_WITH(sg::host::AsioParameterServer(server, {.address = "nowhere"}),
                      Catch::Matchers::Contains("'nowhere' is no address"));
  for (int const threads : {-1, 257})
    REQUIRE_THROWS_WITH(sg::host::AsioParameterServer(server, {.threads = threads}),
                        "a parameter server cannot have " + std::to_string(threads) +
                            " threads; use 1 to 256, or 0 for one on every core, but at most 8");
  for (double const seconds : {0.0, std::numeric_limits<double>::quiet_NaN(), 1e6}) {
    auto const ends = sg::text(" is ", seconds,
                               seconds > 0 ? " s; use less than 1000000 s"
                                           : " s, in which nothing can be waited for; use a "
                                             "positive time");
    REQUIRE_THROWS_WITH(sg::host::AsioParameterServer(server, {.deadline_s = seconds}),
                        "ListenOptions::deadline_s" + ends);
    REQUIRE_THROWS_WITH(sg::host::AsioParameterServer(server, {.handshake_s = seconds}),
                        "ListenOptions::handshake_s" + ends);
    REQUIRE_THROWS_WITH(sg::host::RemoteParameterServer({.deadline_s = seconds}),
                        "ConnectOptions::deadline_s" + ends);
  }
  ::setenv("STAGGER_TEST_TOKEN", "too short", 1);
  REQUIRE_THROWS_WITH(sg::host::Token::from_environment("STAGGER_TEST_TOKEN"),
                      Catch::Matchers::Contains("STAGGER_TEST_TOKEN has 9 bytes"));
  REQUIRE_THROWS_WITH(sg::host::Token::from_file("/nowhere/token"),
                      Catch::Matchers::Contains("cannot read the token from '/nowhere/token'"));
  ::setenv("STAGGER_TEST_TOKEN", "sixteen bytes or", 1);
  auto const token = sg::host::Token::from_environment("STAGGER_TEST_TOKEN");
  sg::host::AsioParameterServer const listening(server, {.address = "0.0.0.0", .token = token});
  compare(Waves{1, 2, 0},
          sg::host::RemoteParameterServer({.port = listening.port(), .token = token}), {{2}}, 1, 5,
          sgd);
  TemporaryFolder const folder;
  // As some editors write it; a token of the longest length, too.
  for (std::string const& written : {std::string("sixteen bytes or"), std::string(64, 'x')})
    for (char const* end : {"", "\n", "\r\n", "\r\nmore"}) {
      std::ofstream(folder / "token", std::ios::binary) << "\xEF\xBB\xBF" << written << end;
      ::setenv("STAGGER_TEST_TOKEN", written.c_str(), 1);
      auto const wanted = sg::host::Token::from_environment("STAGGER_TEST_TOKEN").hello();
      auto const from_file = sg::host::Token::from_file(folder / "token").hello();
      CHECK(std::memcmp(from_file.token, wanted.token, sizeof wanted.token) == 0);
    }
  ::setenv("STAGGER_TEST_TOKEN", "sixteen bytes of", 1);
  auto const other = sg::host::Token::from_environment("STAGGER_TEST_TOKEN");
  REQUIRE_THROWS_WITH(
      make(Waves{1, 2, 0},
           sg::host::RemoteParameterServer({.port = listening.port(), .token = other}), 0, {2}, 1,
           sgd),
      Catch::Matchers::Contains("the token is not that of the server"));
}

TEST_CASE("asio/RemoteParameterServer: without a server its sentence names the port or the machine",
          "[asio]") {
  std::uint16_t free = 0;
  {
    sg::collective::ParameterServer const server({.workers = 1});
    free = sg::host::AsioParameterServer(server).port();
  }
  REQUIRE_THROWS_WITH(
      make(Waves{1, 2, 0}, sg::host::RemoteParameterServer({.port = free, .deadline_s = 0.2}), 0,
           {2}, 1, sgd),
      Catch::Matchers::Contains("cannot connect with the parameter server at 127.0.0.1:"));
  REQUIRE_THROWS_WITH(
      make(Waves{1, 2, 0},
           sg::host::RemoteParameterServer({.host = "nowhere.invalid", .deadline_s = 0.2}), 0, {2},
           1, sgd),
      Catch::Matchers::Contains("cannot find 'nowhere.invalid': ") &&
          Catch::Matchers::Contains("name the machine on which the parameter server runs"));
}

}  // namespace asio_parameter_server_test
