// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Links of workers that stand before those of their server.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/parameters/parameter_link.hpp>

/// A worker's link, which does what another one does.
class Forwarding : public stagger::detail::ParameterLink {
 public:
  using Bytes = stagger::detail::ByteRange;
  explicit Forwarding(std::shared_ptr<stagger::detail::ParameterLink> to) : own_(std::move(to)) {}
  void join(std::span<stagger::detail::LayerParameters const> layers,
            stagger::detail::WorkerRules const& rules,
            stagger::detail::ParameterListener& listener) override {
    listener_ = &listener;
    own_->join(layers, rules, listener);
  }
  void leave() noexcept override { own_->leave(); }
  void begin() override { own_->begin(); }
  [[nodiscard]] bool begins() const noexcept override { return own_->begins(); }
  void read(std::size_t l, std::byte* values) override { own_->read(l, values); }
  void push(std::size_t l, std::byte const* values, bool last, Bytes part) override {
    own_->push(l, values, last, part);
  }
  [[nodiscard]] bool has_turn(std::size_t l) const override { return own_->has_turn(l); }
  void report(double loss) override { own_->report(loss); }
  void ask_late(std::uint32_t step) override { own_->ask_late(step); }
  void ask(std::size_t l, std::uint32_t rounds, Bytes part) override { own_->ask(l, rounds, part); }
  stagger::detail::VersionTag take(std::size_t l, std::uint32_t rounds, std::byte* values,
                                   Bytes part) override {
    return own_->take(l, rounds, values, part);
  }
  void end(std::exception_ptr why) noexcept override { own_->end(why); }
  [[nodiscard]] std::size_t carried_bytes(stagger::detail::LayerParameters const& layer,
                                          Bytes part) const override {
    return own_->carried_bytes(layer, part);
  }
  [[nodiscard]] bool span(int processes) noexcept override { return own_->span(processes); }
  [[nodiscard]] int worker() const noexcept override { return own_->worker(); }
  [[nodiscard]] std::size_t workers() const noexcept override { return own_->workers(); }
  [[nodiscard]] std::string waits_for() const override { return own_->waits_for(); }

 protected:
  stagger::detail::ParameterListener* listener_ = nullptr;

 private:
  std::shared_ptr<stagger::detail::ParameterLink> own_;
};

/// A server whose worker has a link of the test.
struct Through {
  std::shared_ptr<stagger::detail::ParameterLink> link;
  [[nodiscard]] stagger::collective::ServerWorker worker(int) const {
    return stagger::collective::ServerWorker(link);
  }
};
