// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   What the fuzz programs of messages share: frames, a small model, and a worker that does what
///         pipelines do at their link, on one thread and in a time of its own.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/collective/remote_link.hpp>
#include <stagger/collective/server_connection.hpp>
#include <stagger/core/checksum.hpp>
#include <stagger/core/error.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/host/detail/frames.hpp>
#include <stagger/model/optimizer.hpp>
#include <stagger/staleness/overlapped_synchronous.hpp>

namespace fuzz {

namespace sg = stagger;
namespace remote = stagger::collective::detail;
namespace framed = stagger::detail::framed;
using remote::Message;
using Kind = remote::MessageKind;

constexpr std::size_t layers = 2;
constexpr std::size_t floats = 16;  // of each
constexpr std::size_t bytes = floats * sizeof(float);

inline std::string text_of(void const* from, std::size_t count) {
  return {static_cast<char const*>(from), count};
}
inline std::uint64_t checksum(Message const& message, std::span<char const> payload) {
  framed::FrameChecksum sum;
  sum.add(std::as_bytes(payload));
  return sum.value(message);
}
inline std::string frame(Message message, std::string const& payload = {}) {
  message.bytes = payload.size();
  std::uint64_t const sum = checksum(message, payload);
  return text_of(&message, sizeof(message)) + payload + text_of(&sum, sizeof(sum));
}
/// The end of the frame that begins there, with its checksum; npos, if it is not complete.
inline std::size_t end_of_frame(std::string const& all, std::size_t at) {
  Message message;
  if (at + sizeof(message) + 8 > all.size()) return std::string::npos;
  std::memcpy(&message, all.data() + at, sizeof(message));
  if (message.bytes > all.size() - at - sizeof(message) - 8) return std::string::npos;
  return at + sizeof(message) + message.bytes + 8;
}
/// Gives frames the checksum of what they have become, as far as lengths can be followed.
/// @param at  where the first one begins
inline std::string mended(std::string all, std::size_t at) {
  for (std::size_t end = 0; (end = end_of_frame(all, at)) != std::string::npos; at = end) {
    Message message;
    std::memcpy(&message, all.data() + at, sizeof(message));
    std::size_t const first = at + sizeof(message);
    std::uint64_t const sum =
        checksum(message, std::span<char const>(all).subspan(first, end - 8 - first));
    std::memcpy(all.data() + end - 8, &sum, sizeof(sum));
  }
  return all;
}

enum class Models : std::uint8_t { waves, steps, late, arriving };

/// One of which some layers are late, and one in part.
using Late = sg::staleness::OverlappedSynchronous<
    sg::staleness::overlapped::ParameterGradientProduct, sg::staleness::overlapped::SplitLayer,
    sg::staleness::overlapped::ShareLate, sg::staleness::overlapped::NoPrediction>;
inline Late const late_model{.budget = {0.6}};
inline constexpr sg::optimizer::Sgd sgd{};

inline constexpr char run_name[] = "fuzz";

inline std::vector<sg::detail::LayerParameters> model() {
  std::vector<sg::detail::LayerParameters> all(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    sg::List<sg::detail::ParameterDeclaration> declared;
    sg::detail::ParameterDeclaration d;
    d.name = "weight";
    d.size = floats;
    d.initial.assign(bytes, std::byte{0});
    declared.push_back(std::move(d));
    all[l].adopt(std::move(declared), static_cast<int>(l), 0);
  }
  return all;
}
inline sg::detail::WorkerRules rules_of(Models models) {
  sg::detail::WorkerRules rules;
  rules.optimizer = sg::detail::optimizer_call<true>(sgd);
  if (models == Models::arriving) rules.adds = sg::staleness::Adds::on_arrival;
  if (models != Models::waves) rules.pushes = sg::staleness::Pushes::gradients;
  if (models != Models::late) return rules;
  rules.late = sg::detail::late_calls_of<Late>;
  rules.late_policy = &late_model;
  return rules;
}
/// Of a server, which takes any of them.
inline remote::RemoteRules server_rules() {
  remote::RemoteRules rules;
  rules.optimizer = sg::detail::optimizer_call<false>(sgd);
  rules.model_bytes = 1U << 16U;
  rules.late = sg::detail::late_calls_of<Late>;
  rules.late_policy = &late_model;
  return rules;
}

/// Both directions of a connection, for a worker that runs on the thread that delivers messages: time
/// passes only where nothing comes.
class Wire {
 public:
  virtual ~Wire() = default;

  /// For a link; refers to this object.
  [[nodiscard]] std::unique_ptr<remote::Connector> connector() {
    return std::make_unique<OnWire>(*this);
  }
  /// Delivers the next message to the worker. @return whether there was one
  bool pump() { return end_ != nullptr && deliver(*end_); }

 protected:
  virtual bool deliver(remote::MessageEnd& end) = 0;
  virtual void connected() {}
  /// The worker's connection is lost; it is told nothing more.
  void lose(std::exception_ptr why) {
    if (auto* const end = std::exchange(end_, nullptr)) end->gone(std::move(why));
  }

 private:
  struct Line final : remote::Transport {
    explicit Line(Wire& of) : wire(of) {}
    void wake() noexcept override {}
    void close() noexcept override { wire.end_ = nullptr; }
    Wire& wire;
  };
  struct OnWire final : remote::Connector {
    explicit OnWire(Wire& of) : wire(of) {}
    std::unique_ptr<remote::Transport> connect(remote::MessageEnd& end) override {
      wire.end_ = &end;
      wire.connected();
      return std::make_unique<Line>(wire);
    }
    [[nodiscard]] double deadline_s() const override { return 0.5; }
    [[nodiscard]] std::string name() const override { return "port 7"; }
    [[nodiscard]] std::string run() const override { return run_name; }
    [[nodiscard]] double now_s() const override { return wire.now_s_; }
    void wait(std::unique_lock<std::mutex>& lock, std::condition_variable&,
              double most_s) const override {
      lock.unlock();
      if (!wire.pump()) wire.now_s_ += most_s;
      lock.lock();
    }
    [[nodiscard]] std::unique_ptr<Aside> run_aside(void (*)(void*), void*) const override {
      throw std::runtime_error("there is one thread");
    }
    Wire& wire;
  };

  remote::MessageEnd* end_ = nullptr;
  double now_s_ = 0;
};

/// A worker, as an engine uses its link.
class Worker final : private sg::detail::ParameterListener {
 public:
  /// @param wrong  (words) is called where a message had an effect that it may not have
  template <class Wrong>
  Worker(Wire& wire, Models models, Wrong wrong) : wire_(wire), models_(models), wrong_(wrong) {}
  Worker(Worker const&) = delete;

  /// Joins, takes two streams, and leaves.
  /// @return whether nothing failed
  bool run() {
    auto const own = model();
    remote::RemoteLink link(wire_.connector(), 0);
    link_ = &link;
    bool sound = attempt([&] { link.join(own, rules_of(models_), *this); });
    for (int number = 0; number < 2; ++number) {
      lost_ = nullptr;
      bool const done = attempt([&] {
        number == 0 ? link.begin() : void(link.begin_part(sg::detail::any_failures));
        for (std::size_t l = 0; l < layers; ++l) link.read(l, values_);
        models_ == Models::late ? late_steps() : stream();
        static_cast<void>(link.waits_for());
      });
      link.end(done ? nullptr : std::make_exception_ptr(std::runtime_error("it has failed")));
      sound = sound && done;
    }
    link.leave();
    while (wire_.pump()) {
    }
    return sound;
  }

 private:
  using Part = sg::detail::ByteRange;

  template <class Body> bool attempt(Body body) {
    try {
      body();
      return true;
    } catch (sg::Error const&) {
      return false;
    }
  }
  void await() {
    while (missing_ != 0 || chooses_) {
      if (lost_) std::rethrow_exception(lost_);
      if (!wire_.pump())
        sg::raise(sg::Errc::deadline, "the worker waits for weights; see what the server does");
    }
  }
  void await_all(std::uint32_t rounds) {
    await();
    for (std::size_t l = 0; l < layers; ++l) link_->take(l, rounds, values_);
  }
  void stream() {
    for (std::uint32_t push = 1; push <= 3; ++push) {
      bool const last = push == 3 && models_ == Models::waves;
      missing_ = layers;
      for (std::size_t l = 0; l < layers; ++l) {
        link_->push(l, values_, last);
        link_->ask(l, last ? sg::detail::all_rounds : push);
      }
      await_all(last ? sg::detail::all_rounds : push);
    }
  }
  void late_steps() {
    Part late[layers] = {{0, 0}, {0, 0}};
    for (step_ = 0; step_ < 3; ++step_) {
      missing_ = 0;
      Part const before[layers] = {late[0], late[1]};
      for (std::size_t l = 0; l < layers; ++l)
        if (before[l].size() != 0) ask(l, step_, before[l]);
      chooses_ = step_ != 0;
      if (chooses_) link_->ask_late(step_);
      await();
      for (std::size_t l = 0; l < layers; ++l)
        if (before[l].size() != 0) link_->take(l, step_, values_, before[l]);
      for (std::size_t l = 0; l < layers; ++l) late[l] = {0, step_ == 0 ? 0 : late_[l]};
      link_->report(1.0 / (1 + step_));
      for (std::size_t l = 0; l < layers; ++l) {
        if (late[l].size() == 0) link_->push(l, values_, false);
        if (late[l].size() != 0 && late[l].size() != bytes)
          link_->push(l, values_, false, {late[l].last, bytes});
      }
      for (std::size_t l = 0; l < layers; ++l)
        if (late[l].size() != bytes) ask(l, step_ + 1, {late[l].last, bytes});
      await();
      for (std::size_t l = 0; l < layers; ++l) {
        if (late[l].size() != bytes) link_->take(l, step_ + 1, values_, {late[l].last, bytes});
        if (late[l].size() != 0) link_->push(l, values_, false, late[l]);
      }
    }
  }
  void ask(std::size_t l, std::uint32_t rounds, Part part) {
    ++missing_;
    link_->ask(l, rounds, part);
  }

  void one_arrived(std::size_t l) noexcept {
    if (l >= layers || missing_ == 0) return wrong_("it is told of what it has not asked for");
    --missing_;
  }
  void arrived(std::size_t l, std::uint32_t) noexcept override { one_arrived(l); }
  void late_layers(std::uint32_t, sg::detail::LateSet const& set) noexcept override {
    for (std::size_t l = 0; l < layers; ++l) {
      late_[l] = set.bytes(l, bytes);
      if (late_[l] > bytes || late_[l] % 8 != 0) wrong_("a part of a layer cannot be");
    }
    chooses_ = false;
  }
  void late_scores(std::uint32_t, std::span<double const> scores, double) noexcept override {
    if (scores.size() != layers) wrong_("there are scores of other layers");
  }
  void lost(std::exception_ptr why) noexcept override { lost_ = std::move(why); }

  Wire& wire_;
  Models models_;
  void (*wrong_)(char const*);
  remote::RemoteLink* link_ = nullptr;
  std::byte values_[bytes] = {};
  std::size_t missing_ = 0;
  std::size_t late_[layers] = {};
  std::uint32_t step_ = 0;
  bool chooses_ = false;
  std::exception_ptr lost_;
};

/// With a server, of which it records what both ends say.
class Recorded final : public Wire, private remote::Transport {
 public:
  explicit Recorded(Models models)
      : server_({.workers = 1, .run = run_name}), rules_(server_rules()) {
    connection_ = std::make_unique<remote::ServerConnection>(server_.in_process(), rules_);
    connection_->carried_by(*this);
    Worker worker(*this, models, [](char const* words) { throw std::logic_error(words); });
    if (!worker.run()) throw std::logic_error("a worker and its server do not understand another");
  }
  std::string of_worker{}, of_server{};

 private:
  void wake() noexcept override {}
  void close() noexcept override {}
  bool deliver(remote::MessageEnd& end) override {
    while (carry(end, *connection_, of_worker)) {
    }
    return carry(*connection_, end, of_server);
  }
  static bool carry(remote::MessageEnd& from, remote::MessageEnd& to, std::string& all) {
    Message message;
    std::span<std::byte const> payload;
    if (!from.next(message, payload)) return false;
    all += frame(message, text_of(payload.data(), payload.size()));
    auto const space = to.payload_buffer(message);
    if (!payload.empty()) std::memcpy(space.data(), payload.data(), payload.size());
    to.received(message);
    return true;
  }

  sg::collective::ParameterServer server_;
  remote::RemoteRules rules_;
  std::unique_ptr<remote::ServerConnection> connection_;
};

}  // namespace fuzz
