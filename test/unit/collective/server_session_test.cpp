// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/detail/server_session.hpp>

#include "catch.hpp"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>

namespace server_session_test {

namespace sg = stagger;
namespace remote = sg::collective::detail;

namespace {

std::exception_ptr reset_by_peer() {
  return std::make_exception_ptr(sg::Error(sg::Errc::io, "the connection was reset"));
}

/// A worker whose server lets it in at once.
struct Worker final : remote::MessageEnd {
  struct Connector final : remote::Connector {
    explicit Connector(Worker& worker) : of(worker) {}
    std::unique_ptr<remote::Transport> connect(remote::MessageEnd& end) override {
      struct Nowhere final : remote::Transport {
        explicit Nowhere(remote::MessageEnd* told) : end(told) {}
        void wake() noexcept override {}
        void close() noexcept override {
          if (end != nullptr) std::exchange(end, nullptr)->gone(reset_by_peer());
        }
        remote::MessageEnd* end;  // told when it is closed; null: nobody
      };
      int const number = ++of.connections;
      {
        auto const lock = of.session.lock();
        static_cast<void>(of.session.join(7, true));
      }
      if (number == of.lost_at_once) end.gone(reset_by_peer());
      return std::make_unique<Nowhere>(of.told_of_close ? &end : nullptr);
    }
    [[nodiscard]] double deadline_s() const override { return 60; }
    [[nodiscard]] std::string name() const override { return "the test"; }
    Worker& of;
  };

  std::span<std::byte> payload_buffer(remote::Message const&) override { return {}; }
  void received(remote::Message const&) override {}
  bool next(remote::Message&, std::span<std::byte const>&) override { return false; }
  void gone(std::exception_ptr why) noexcept override {
    auto const lock = session.lock();
    if (!streams || !session.mend(why)) session.fail(why);
  }

  std::atomic<int> connections{0};
  int lost_at_once = 0;  // of the connections
  bool told_of_close = false;
  bool streams = true;
  remote::ServerSession session{std::make_unique<Connector>(*this)};
};

}  // namespace

TEST_CASE("collective/ServerSession: a connection that is lost as soon as it stands is made again",
          "[collective]") {
  Worker worker;
  worker.session.connect(worker, {.kind = remote::MessageKind::join}, 4);
  worker.lost_at_once = 2;
  worker.gone(reset_by_peer());
  {
    auto lock = worker.session.lock();
    CHECK(worker.session.wait_for(
        lock, 30, [&] { return worker.connections == 3 && worker.session.joined(); }));
    CHECK(worker.session.failure() == nullptr);
  }
  worker.session.leave();
}

TEST_CASE("collective/ServerSession: a connection that still ends does not end the next one",
          "[collective]") {
  Worker worker;
  worker.told_of_close = true;
  worker.streams = false;
  worker.session.connect(worker, {.kind = remote::MessageKind::join}, 4);
  {
    auto const lock = worker.session.lock();
    worker.session.fail(std::make_exception_ptr(sg::Error(sg::Errc::mismatch, "refused")));
  }
  worker.session.connect(worker, {.kind = remote::MessageKind::join}, 4);
  CHECK(worker.connections == 2);
  {
    auto const lock = worker.session.lock();
    CHECK(worker.session.failure() == nullptr);
    CHECK(worker.session.joined());
  }
  worker.session.leave();
}

namespace {

/// A worker of a server that lets it in after many transfers, each of which takes most of the
/// deadline. Its clock runs while it waits.
struct SlowWorker final : remote::MessageEnd {
  static constexpr double each_s = 7;  // of a transfer
  struct Connector final : remote::Connector {
    explicit Connector(SlowWorker& worker) : of(worker) {}
    std::unique_ptr<remote::Transport> connect(remote::MessageEnd&) override {
      struct Slow final : remote::Transport {
        explicit Slow(SlowWorker& worker) : of(worker) {}
        void wake() noexcept override {}
        void close() noexcept override {}
        [[nodiscard]] std::uint64_t moved() const noexcept override { return of.transfers; }
        SlowWorker& of;
      };
      return std::make_unique<Slow>(of);
    }
    [[nodiscard]] double deadline_s() const override { return 8; }
    [[nodiscard]] std::string name() const override { return "the test"; }
    [[nodiscard]] double now_s() const override { return of.now_s; }
    void wait(std::unique_lock<std::mutex>&, std::condition_variable&,
              double most_s) const override {
      of.now_s += most_s;
      while (of.transfers < of.most && of.now_s >= each_s * (of.transfers + 1)) ++of.transfers;
      if (of.joins_at != 0 && of.transfers == of.joins_at)
        static_cast<void>(of.session.join(7, false));
    }
    SlowWorker& of;
  };
  std::span<std::byte> payload_buffer(remote::Message const&) override { return {}; }
  void received(remote::Message const&) override {}
  bool next(remote::Message&, std::span<std::byte const>&) override { return false; }
  void gone(std::exception_ptr) noexcept override {}
  void connect() { session.connect(*this, {.kind = remote::MessageKind::join}, 4); }

  double now_s = 0;
  unsigned transfers = 0;
  unsigned most = 0;      // transfers; then nothing moves any more
  unsigned joins_at = 0;  // transfers; 0: never
  remote::ServerSession session{std::make_unique<Connector>(*this)};
};

}  // namespace

TEST_CASE("collective/ServerSession: a deadline begins again with each transfer", "[collective]") {
  SlowWorker worker;
  worker.most = worker.joins_at = 20;
  worker.connect();
  CHECK(worker.now_s >= 140);
  auto lock = worker.session.lock();
  worker.most = 30;
  worker.session.wait(lock, "sent its weights", [&] { return worker.transfers == 30; });
  CHECK(worker.now_s >= 210);
  REQUIRE_THROWS_WITH(worker.session.wait(lock, "sent its weights", [] { return false; }),
                      Catch::Matchers::Contains("has not sent its weights for 8 s; "));
  CHECK(worker.now_s >= 218);
  CHECK(worker.now_s <= 221);
}

TEST_CASE("collective/ServerSession: a server that transfers nothing does not let a worker in",
          "[collective]") {
  SlowWorker worker;
  worker.most = 3;
  REQUIRE_THROWS_WITH(
      worker.connect(),
      "the parameter server at the test has not let the worker join, and nothing has been sent for "
      "8 s; check whether it runs, or raise the deadline");
  CHECK(worker.now_s >= 29);
  CHECK(worker.now_s <= 31);
}

}  // namespace server_session_test
