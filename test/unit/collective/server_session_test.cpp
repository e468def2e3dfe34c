// SPDX-License-Identifier: Apache-2.0
#include <stagger/collective/detail/server_session.hpp>

#include "catch.hpp"

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string>

#include <stagger/collective/messages.hpp>
#include <stagger/core/error.hpp>

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
        void wake() noexcept override {}
        void close() noexcept override {}
      };
      int const number = ++of.connections;
      {
        auto const lock = of.session.lock();
        static_cast<void>(of.session.join(7, true));
      }
      if (number == of.lost_at_once) end.gone(reset_by_peer());
      return std::make_unique<Nowhere>();
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
    if (!session.mend(why)) session.fail(why);
  }

  std::atomic<int> connections{0};
  int lost_at_once = 0;  // of the connections
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
