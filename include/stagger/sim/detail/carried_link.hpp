// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A worker's link to its parameter server on which pushes and answers take virtual time.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <stagger/core/basic_algorithm.hpp>
#include <stagger/core/index_range.hpp>
#include <stagger/core/list.hpp>
#include <stagger/parameters/parameter_link.hpp>
#include <stagger/sim/detail/carried_layer.hpp>
#include <stagger/sim/detail/event_queue.hpp>

namespace stagger::sim::detail {

using stagger::detail::ByteRange;
using stagger::detail::LateSet;
using stagger::detail::LayerParameters;
using stagger::detail::ParameterLink;
using stagger::detail::ParameterListener;
using stagger::detail::VersionTag;
using stagger::detail::WorkerRules;

/// A push reaches the server, and an answer the worker, when all of its bytes have been
/// transferred; the worker goes on meanwhile. Requests take no time themselves. If pushes are added
/// on arrival or in turn, a request follows the pushes that were made before it. A push in turn is
/// sent when it is the worker's turn.
/// @tparam Link  ParameterLink. A template, so that only pipelines with a server compile it
template <class Link>
class CarriedLink final : public ParameterLink, private ParameterListener, private EventTarget {
 public:
  CarriedLink(std::shared_ptr<Link> link, std::shared_ptr<SharedTime> time)
      : link_(std::move(link)), time_(std::move(time)) {}
  CarriedLink(CarriedLink const&) = delete;
  CarriedLink& operator=(CarriedLink const&) = delete;
  ~CarriedLink() override { drop(); }

  void join(std::span<LayerParameters const> layers, WorkerRules const& rules,
            ParameterListener& listener) override {
    listener_ = &listener;
    WorkerRules timed = rules;
    timed.clock = time_.get();
    exact_ = rules.adds == staleness::Adds::in_worker_order;
    turn_.taken = rules.adds == staleness::Adds::in_turn;
    layers_ = List<CarriedLayer>(layers.size());
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      layers_[l].bytes = layers[l].bytes_of_values();
      layers_[l].sent_bytes = layers[l].sent_bytes();
    }
    link_->join(layers, timed, *this);
  }
  void leave() noexcept override {
    drop();
    link_->leave();
    pass_turn();
  }
  [[nodiscard]] double change_factor() const override { return link_->change_factor(); }

  void begin() override {
    drop();
    for (CarriedLayer& layer : layers_) layer.pushes = 0;
    link_->begin();
  }
  void read(std::size_t layer, std::byte* values) override {
    link_->read(layer, values);
    if (!exact_ && !instant()) layers_[layer].read(values, workers());
  }

  /// Late layers are sent one after the other, as on one connection, so that answers for the first
  /// are already in transit while others are still being pushed.
  void push(std::size_t layer, std::byte const* values, bool last, ByteRange part) override {
    CarriedLayer& own = layers_[layer];
    bool const completes = part.first == 0;
    bool const late = completes && part.last <= own.bytes;
    std::uint32_t const push = completes ? own.pushes++ : own.pushes;
    if (instant()) {
      tell(layer, true, push, time_->queue.now_s());
      return link_->push(layer, values, last, part);
    }
    std::size_t const number = make(late ? Parcel::late : Parcel::pushed, layer, push);
    parcels_[number].last = last;
    parcels_[number].part = part;
    fill(number, values);
    if (late) {
      late_.push_back(number);
      if (late_.size() == 1) send_push(number);
    } else if (turn_.has_come(*link_, layers_, push)) {
      send_push(number);
    } else {
      if (turn_.held.empty()) time_->wait_for_turn.push_back(this);
      turn_.held.push_back(number);
    }
  }
  void report(double loss) override { link_->report(loss); }
  void ask_late(std::uint32_t step) override { link_->ask_late(step); }
  void ask(std::size_t layer, std::uint32_t rounds, ByteRange part) override {
    CarriedLayer& own = layers_[layer];
    if (!exact_ && !instant() && rounds != stagger::detail::all_rounds) {
      own.ask(rounds);
      return request(layer);
    }
    own.cancel();
    own.asked = part;
    link_->ask(layer, rounds, part);
  }
  VersionTag take(std::size_t layer, std::uint32_t rounds, std::byte* values,
                  ByteRange part) override {
    if (exact_ || instant() || rounds == stagger::detail::all_rounds)
      return link_->take(layer, rounds, values, part);
    CarriedLayer const& own = layers_[layer];
    if (own.bytes != 0) std::memcpy(values, own.answer.data(), own.bytes);
    return own.tag(worker());
  }

  void end(std::exception_ptr why) noexcept override {
    drop();
    link_->end(std::move(why));
    pass_turn();
  }
  [[nodiscard]] std::size_t carried_bytes(LayerParameters const& l, ByteRange part) const override {
    return part.size_before(l.sent_bytes());  // all gaps are assumed to be at the end
  }
  [[nodiscard]] int worker() const noexcept override { return link_->worker(); }
  [[nodiscard]] std::size_t workers() const noexcept override { return link_->workers(); }
  [[nodiscard]] std::string waits_for() const override { return link_->waits_for(); }

 private:
  enum Kind : std::uint32_t { answers, turn_passes, arrives };
  [[nodiscard]] bool instant() const noexcept { return time_->network.links().instant(); }

  /// @return its place
  std::size_t make(Parcel::Kind kind, std::size_t layer, std::uint32_t number) {
    return parcels_.make(kind, layer, number, time_->queue.now_s());
  }
  void tell(std::size_t layer, bool push, std::uint32_t number, double sent_s) {
    listener_->carried(layer, push, number, sent_s, time_->queue.now_s());
  }
  /// Copies a push into a parcel.
  void fill(std::size_t number, std::byte const* values) {
    CarriedLayer& layer = layers_[parcels_[number].layer];
    parcels_[number].fill(values, layer.bytes);
    ++layer.under_way;
  }
  void transfer(std::uint64_t bytes, Direction direction, std::size_t number) {
    time_->network.send(bytes, direction, *this, arrives, number);
  }
  void request(std::size_t layer) {
    if (layers_[layer].request()) link_->ask(layer, layers_[layer].rounds());
  }
  void send_push(std::size_t number) {
    Parcel& parcel = parcels_[number];
    parcel.sent_s = time_->queue.now_s();
    transfer(parcel.part.size_before(layers_[parcel.layer].sent_bytes), Direction::push, number);
  }
  /// Sends the pushes whose turn it is.
  void send_held() {
    auto& held = turn_.held;
    if (!held.empty() && !turn_.has_come(*link_, layers_, parcels_[held[0]].number))
      return time_->wait_for_turn.push_back(this);
    for (std::size_t const number : held) send_push(number);
    held.clear();
  }
  void pass_turn() noexcept {
    send([&] { time_->pass_turn(turn_passes); });
  }
  /// Drops everything in transit.
  void drop() noexcept {
    late_.clear();
    turn_.drop();
    for (EventTarget*& each : time_->wait_for_turn)
      if (each == this) each = nullptr;
    time_->network.forget(*this);
    time_->queue.remove(*this);
    parcels_.drop();
    for (CarriedLayer& layer : layers_) layer.drop();
  }

  void arrived(std::size_t layer, std::uint32_t rounds) noexcept override {
    send([&] {
      if (instant()) {
        tell(layer, false, rounds, time_->queue.now_s());
        return listener_->arrived(layer, rounds);
      }
      bool const last = rounds == stagger::detail::all_rounds;
      std::size_t const number = make(last ? Parcel::last_answer : Parcel::answer, layer, rounds);
      if (exact_ || last)
        transfer(layers_[layer].asked.size_before(layers_[layer].sent_bytes), Direction::pull,
                 number);
      else  // its values are those of this moment, but the server is at work
        time_->queue.at(time_->queue.now_s(), *this, answers, number);
    });
  }
  void late_layers(std::uint32_t step, LateSet const& late) noexcept override {
    // The worker waits for the first choice before its first step, as it does for its first
    // weights.
    if (instant() || step == 0) return listener_->late_layers(step, late);
    send([&] {
      std::size_t const number = make(Parcel::choice, layers_.size(), step);
      Parcel& parcel = parcels_[number];
      parcel.fill(late.bitmap.data(), late.bitmap.size());
      parcel.split = late.split;
      parcel.part.last = late.split_bytes;
      transfer(late.bitmap.size(), Direction::pull, number);
    });
  }
  void lost(std::exception_ptr why) noexcept override {
    drop();
    listener_->lost(std::move(why));
  }

  void happen(std::uint32_t kind, std::size_t number) override {
    if (kind == arrives) return delivered(number);
    if (kind == turn_passes) return send([&] { send_held(); });
    send([&] {
      Parcel& parcel = parcels_[number];
      parcel.keep(layers_[parcel.layer].bytes);
      VersionTag const tag = link_->take(parcel.layer, parcel.number, parcel.values.data());
      parcel.contained.assign(tag.pushes.data(), tag.pushes.size());
      transfer(layers_[parcel.layer].sent_bytes, Direction::pull, number);
    });
  }

  void delivered(std::size_t number) {
    Parcel parcel = std::move(parcels_[number]);  // others may be made meanwhile
    if (parcel.kind == Parcel::choice)
      listener_->late_layers(parcel.number, {parcel.values.span(), parcel.split, parcel.part.last});
    else
      deliver(parcel, layers_[parcel.layer]);
    parcel.kind = Parcel::none;
    parcels_[number] = std::move(parcel);
  }
  void deliver(Parcel& parcel, CarriedLayer& layer) {
    std::size_t const l = parcel.layer;
    bool const pushed = parcel.is_push();
    std::uint32_t const there =
        parcel.kind == Parcel::answer ? layer.arrive(parcel, !exact_, worker()) : 0;
    send([&] { tell(l, pushed, parcel.number, parcel.sent_s); });
    if (pushed) {
      if (parcel.kind == Parcel::late) {
        std::move(late_.begin() + 1, late_.end(), late_.begin());
        late_.pop_back();
        if (!late_.empty()) send([&] { send_push(late_.front()); });
      }
      send([&] { link_->push(l, parcel.values.data(), parcel.last, parcel.part); });
      pass_turn();
      if (layer.under_way != 0) --layer.under_way;
      send([&] { request(l); });
    } else if (parcel.kind == Parcel::last_answer) {
      listener_->arrived(l, parcel.number);
    } else {
      send([&] { request(l); });
      listener_->arrived(l, there);
    }
  }

  /// An error outside of the worker's own calls ends its stream.
  template <class Body> void send(Body body) noexcept {
    try {
      body();
    } catch (...) {
      lost(std::current_exception());
    }
  }

  std::shared_ptr<Link> link_;
  std::shared_ptr<SharedTime> time_;
  ParameterListener* listener_ = nullptr;
  bool exact_ = true;
  List<CarriedLayer> layers_;
  Parcels parcels_;
  List<std::size_t> late_;  // parcels sent one after another; the first is in transit
  Turn turn_;
};

}  // namespace stagger::sim::detail
